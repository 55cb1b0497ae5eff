/* A forked child is refused its parent's area, and may have one of its own; the parent loses nothing. argv[1] is the area's
 * file, argv[2] the child's. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static swy_area *the_area;
static volatile int is_over;

/* Keeps the library's locks busy, so that some children begin while one is held. */
static void *disturb(void *argument)
{
    (void)argument;
    while (!is_over) {
        swy_queue *queue;
        OK(swy_queue_open(the_area, "queue", 0, &queue));
        OK(swy_queue_push(queue, TEXT("x"), NULL));
        OK(swy_queue_close(queue));
    }
    return NULL;
}

static void child(const char *path, swy_map *map, swy_completions *completions, swy_snapshot *snapshot)
{
    swy_snapshot *its_snapshot;
    swy_area *own;
    swy_map *its_map;
    swy_bytes value;
    int code;
    EXPECT(swy_map_put(map, TEXT("k"), TEXT("child")) == SWY_FORKED && strstr(swy_error(), "forked") != NULL);
    EXPECT(swy_map_get(map, TEXT("k"), &value) == SWY_FORKED);
    EXPECT(swy_snapshot_map_get(snapshot, map, TEXT("k"), &value) == SWY_FORKED && strstr(swy_error(), "forked") != NULL);
    EXPECT(swy_snapshot_open(the_area, &its_snapshot) == SWY_FORKED && its_snapshot == NULL);
    EXPECT(swy_area_sync(the_area) == SWY_FORKED);
    EXPECT(swy_completions_add(completions, 1, 1) == SWY_FORKED);
    own = open_area(path, 16 << 20);
    OK(swy_map_open(own, "map", 0, &its_map));
    OK(swy_map_put(its_map, TEXT("k"), TEXT("own")));
    EXPECT(swy_map_put(map, TEXT("k"), TEXT("child")) == SWY_FORKED);
    /* A thread of the parent may hold a lock of a handle that the child closes. */
    code = swy_completions_close(completions);
    EXPECT(code == SWY_OK || code == SWY_HANDLE);
    code = swy_snapshot_close(snapshot);
    EXPECT(code == SWY_OK || code == SWY_HANDLE);
    EXPECT(swy_snapshot_map_get(snapshot, its_map, TEXT("k"), &value) == SWY_FORKED);
    code = swy_map_close(map);
    EXPECT(code == SWY_OK || code == SWY_HANDLE);
    code = swy_area_close(the_area);
    EXPECT(code == SWY_OK || code == SWY_HANDLE);
    OK(swy_snapshot_open(own, &its_snapshot));
    OK(swy_snapshot_map_get(its_snapshot, its_map, TEXT("k"), &value));
    EXPECT(is_text(&value, "own"));
    OK(swy_snapshot_close(its_snapshot));
    OK(swy_map_get(its_map, TEXT("k"), &value));
    EXPECT(is_text(&value, "own"));
    OK(swy_map_close(its_map));
    OK(swy_area_close(own));
    _exit(0);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    swy_map *map;
    swy_completions *completions;
    swy_snapshot *snapshot;
    swy_bytes value;
    int round, status;
    EXPECT(argc == 3);
    the_area = open_area(argv[1], 16 << 20);
    OK(swy_map_open(the_area, "map", 0, &map));
    OK(swy_completions_open(the_area, &completions));
    OK(swy_map_put(map, TEXT("k"), TEXT("before")));
    OK(swy_snapshot_open(the_area, &snapshot));
    OK(swy_map_put(map, TEXT("k"), TEXT("parent")));
    EXPECT(pthread_create(&thread, NULL, disturb, NULL) == 0);
    for (round = 0; round < 20; round++) {
        pid_t pid = fork();
        EXPECT(pid >= 0);
        if (pid == 0)
            child(argv[2], map, completions, snapshot);
        EXPECT(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        OK(swy_map_get(map, TEXT("k"), &value));
        EXPECT(is_text(&value, "parent"));
        OK(swy_snapshot_map_get(snapshot, map, TEXT("k"), &value));
        EXPECT(is_text(&value, "before"));
    }
    is_over = 1;
    EXPECT(pthread_join(thread, NULL) == 0);
    OK(swy_snapshot_close(snapshot));
    OK(swy_completions_close(completions));
    OK(swy_map_close(map));
    OK(swy_area_close(the_area));
    return 0;
}
