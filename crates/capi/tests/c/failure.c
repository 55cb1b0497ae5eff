/* A write that fails: every change that waits is told, nothing more is taken, and what was durable is there afterwards. The limit
 * of a file's size makes writes fail. argv[1] is the area's file. */
#include "check.h"
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

static void limit(rlim_t bytes)
{
    struct rlimit limits;
    EXPECT(getrlimit(RLIMIT_FSIZE, &limits) == 0);
    limits.rlim_cur = bytes;
    EXPECT(setrlimit(RLIMIT_FSIZE, &limits) == 0);
}

int main(int argc, char **argv)
{
    swy_area *area;
    swy_map *map;
    swy_completions *completions;
    swy_completion ended[64];
    swy_bytes value;
    swy_batch *batch;
    struct pollfd poller;
    uint64_t ticket;
    size_t found = 0, count, i, changes;
    EXPECT(argc == 2 && signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    area = open_area(argv[1], 16 << 20);
    OK(swy_map_open(area, "map", 0, &map));
    OK(swy_completions_open(area, &completions));
    OK(swy_batch_open(area, &batch));
    OK(swy_map_put(map, TEXT("durable"), TEXT("yes")));
    limit(512);
    for (i = 0; i < 50; i++) {
        int code = swy_map_put_async(map, TEXT("lost"), TEXT("perhaps"), &ticket);
        if (code == SWY_FAILED)
            break;
        OK(code);
        OK(swy_completions_add(completions, ticket, i));
    }
    EXPECT(i > 0);
    OK(swy_completions_descriptor(completions, &poller.fd));
    poller.events = POLLIN;
    while (found < i) {
        EXPECT(poll(&poller, 1, 60000) == 1);
        OK(swy_completions_collect(completions, ended, 64, &count));
        while (count-- > 0) {
            EXPECT(ended[count].code == SWY_FAILED);
            found++;
        }
    }
    limit(RLIM_INFINITY);
    EXPECT(swy_map_put(map, TEXT("later"), TEXT("no")) == SWY_FAILED && swy_area_sync(area) == SWY_FAILED);
    /* A batch that is refused keeps its changes. */
    OK(swy_batch_map_put(batch, map, TEXT("later"), TEXT("no")));
    EXPECT(swy_batch_commit(batch, NULL, 0) == SWY_FAILED);
    OK(swy_batch_length(batch, &changes, NULL));
    EXPECT(changes == 1);
    OK(swy_map_get(map, TEXT("durable"), &value));
    EXPECT(is_text(&value, "yes"));
    OK(swy_batch_close(batch));
    OK(swy_completions_close(completions));
    OK(swy_map_close(map));
    EXPECT(swy_area_close(area) == SWY_FAILED && swy_area_close(area) == SWY_HANDLE);
    area = open_area(argv[1], 0);
    OK(swy_map_open(area, "map", SWY_EXISTING, &map));
    OK(swy_map_get(map, TEXT("durable"), &value));
    EXPECT(is_text(&value, "yes"));
    OK(swy_map_put(map, TEXT("later"), TEXT("yes")));
    OK(swy_map_close(map));
    OK(swy_area_close(area));
    return 0;
}
