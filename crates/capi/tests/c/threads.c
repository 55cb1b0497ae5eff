/* Threads that change an area at once, and 1,000 changes in flight that a descriptor tells of. argv[1] is the area's file. */
#include "check.h"
#include <poll.h>
#include <pthread.h>

#define THREADS 8
#define ROUNDS 100
#define IN_FLIGHT 1000

static swy_area *the_area;
static swy_map *the_map;
static swy_completions *the_completions;

/* Adds one to a number that all threads change: each tries again until nobody was between. */
static void count_up(swy_map *counters)
{
    int code;
    do {
        swy_bytes value;
        swy_batch *batch;
        uint64_t version;
        char number[32];
        code = swy_map_get_versioned(counters, TEXT("n"), &value, &version);
        EXPECT(code == SWY_OK || code == SWY_NONE);
        snprintf(number, sizeof number, "%010d", (value.data != NULL ? atoi((const char *)value.data) : 0) + 1);
        swy_bytes_free(&value);
        OK(swy_batch_open(the_area, &batch));
        OK(swy_batch_map_expect(batch, counters, TEXT("n"), version));
        OK(swy_batch_map_put(batch, counters, "n", 1, number, sizeof "0123456789"));
        code = swy_batch_commit(batch, NULL, 0);
        EXPECT(code == SWY_OK || code == SWY_CONFLICT);
        OK(swy_batch_close(batch));
    } while (code == SWY_CONFLICT);
}

static void *work(void *argument)
{
    size_t number = (size_t)argument, round;
    char key[32];
    swy_map *counters;
    OK(swy_map_open(the_area, "counters", 0, &counters));
    for (round = 0; round < ROUNDS; round++) {
        swy_bytes value;
        swy_queue *queue;
        uint64_t ticket;
        snprintf(key, sizeof key, "%zu/%zu", number, round);
        if (round % 2 == 0) {
            OK(swy_map_put(the_map, TEXT(key), TEXT(key)));
            OK(swy_map_get(the_map, TEXT(key), &value));
            EXPECT(is_text(&value, key));
        } else {
            OK(swy_map_put_async(the_map, TEXT(key), TEXT(key), &ticket));
            OK(swy_completions_add(the_completions, ticket, number * ROUNDS + round));
        }
        if (round % 4 == 0)
            count_up(counters);
        OK(swy_queue_open(the_area, "queue", 0, &queue));
        OK(swy_queue_close(queue));
        EXPECT(swy_queue_push(queue, TEXT("x"), NULL) == SWY_HANDLE);
    }
    OK(swy_map_close(counters));
    return NULL;
}

/* Collects so many completions, each tag once. */
static void collect(size_t expected, size_t tags)
{
    swy_completion ended[7];
    char *seen = (char *)calloc(tags, 1);
    struct pollfd poller;
    size_t found = 0, count, i;
    OK(swy_completions_descriptor(the_completions, &poller.fd));
    poller.events = POLLIN;
    while (found < expected) {
        EXPECT(poll(&poller, 1, 60000) == 1);
        OK(swy_completions_collect(the_completions, ended, 7, &count));
        EXPECT(count > 0);
        for (i = 0; i < count; i++) {
            EXPECT(ended[i].code == SWY_OK && ended[i].tag < tags && !seen[ended[i].tag]++);
        }
        found += count;
    }
    EXPECT(poll(&poller, 1, 0) == 0);
    OK(swy_completions_collect(the_completions, ended, 7, &count));
    EXPECT(count == 0);
    free(seen);
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t ticket, entries, durable;
    size_t i;
    char key[32];
    EXPECT(argc == 2);
    the_area = open_area(argv[1], 64 << 20);
    OK(swy_map_open(the_area, "map", 0, &the_map));
    OK(swy_completions_open(the_area, &the_completions));
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    collect(THREADS * ROUNDS / 2, THREADS * ROUNDS);
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    OK(swy_map_length(the_map, &entries));
    EXPECT(entries == THREADS * ROUNDS);
    {
        swy_map *counters;
        swy_bytes number;
        OK(swy_map_open(the_area, "counters", SWY_EXISTING, &counters));
        OK(swy_map_get(counters, TEXT("n"), &number));
        EXPECT(atoi((const char *)number.data) == THREADS * ROUNDS / 4);
        swy_bytes_free(&number);
        OK(swy_map_close(counters));
    }
    for (i = 0; i < IN_FLIGHT; i++) {
        snprintf(key, sizeof key, "flight %zu", i);
        OK(swy_map_put_async(the_map, TEXT(key), TEXT(key), &ticket));
        OK(swy_completions_add(the_completions, ticket, i));
    }
    collect(IN_FLIGHT, IN_FLIGHT);
    OK(swy_area_durable(the_area, &durable));
    EXPECT(durable >= ticket);
    OK(swy_map_length(the_map, &entries));
    EXPECT(entries == THREADS * ROUNDS + IN_FLIGHT);
    EXPECT(swy_completions_add(the_completions, UINT64_MAX, 0) == SWY_INVALID);
    /* Nobody collects these. */
    for (i = 0; i < 100; i++) {
        OK(swy_map_put_async(the_map, TEXT("last"), TEXT("last"), &ticket));
        OK(swy_completions_add(the_completions, ticket, i));
    }
    OK(swy_completions_close(the_completions));
    EXPECT(swy_completions_add(the_completions, ticket, 0) == SWY_HANDLE);
    OK(swy_area_wait(the_area, ticket));
    OK(swy_map_close(the_map));
    OK(swy_area_close(the_area));
    return 0;
}
