/* Threads that use and close each other's handles, whatever these are by now: every call has a result. argv[1] is the area's file. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 6
#define ROUNDS 3000
#define PLACES 12

static swy_area *the_area;
static _Atomic(void *) handles[PLACES];

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void expect_known(int code)
{
    EXPECT(code == SWY_OK || code == SWY_NONE || code == SWY_HANDLE || code == SWY_INVALID || code == SWY_CONFLICT);
}

/* Opens something, of a kind by chance, and leaves it for all. */
static void *make(unsigned chance)
{
    swy_map *map = NULL;
    swy_tree *tree = NULL;
    swy_log *log = NULL;
    swy_queue *queue = NULL;
    swy_batch *batch = NULL;
    swy_snapshot *snapshot = NULL;
    switch (chance % 6) {
    case 0: expect_known(swy_map_open(the_area, "map", SWY_LAZY, &map)); return map;
    case 1: expect_known(swy_tree_open(the_area, "tree", SWY_LAZY, &tree)); return tree;
    case 2: expect_known(swy_log_open(the_area, "log", SWY_LAZY, &log)); return log;
    case 3: expect_known(swy_queue_open(the_area, "queue", SWY_LAZY, &queue)); return queue;
    case 4: expect_known(swy_snapshot_open(the_area, &snapshot)); return snapshot;
    default: expect_known(swy_batch_open(the_area, &batch)); return batch;
    }
}

static void use(void *handle, void *other, unsigned chance)
{
    swy_bytes value = SWY_BYTES_INIT;
    uint64_t position;
    char key = (char)('a' + chance % 16);
    switch (chance % 15) {
    case 0: expect_known(swy_map_put((swy_map *)handle, &key, 1, &key, 1)); break;
    case 1: expect_known(swy_map_get((swy_map *)handle, &key, 1, &value)); break;
    case 2: expect_known(swy_tree_put((swy_tree *)handle, &key, 1, &key, 1)); break;
    case 3: expect_known(swy_log_append((swy_log *)handle, &key, 1, &position)); break;
    case 4: expect_known(swy_queue_push((swy_queue *)handle, &key, 1, &position)); break;
    case 5: expect_known(swy_queue_pop((swy_queue *)handle, &position, &value)); break;
    case 6: expect_known(swy_batch_map_put((swy_batch *)handle, (swy_map *)other, &key, 1, &key, 1)); break;
    case 7: expect_known(swy_batch_push((swy_batch *)handle, (swy_queue *)other, &key, 1)); break;
    case 8: expect_known(swy_batch_commit((swy_batch *)handle, NULL, 0)); break;
    case 9: {
        swy_cursor *cursor;
        swy_slice name, data;
        int code = swy_tree_cursor_open((swy_tree *)handle, NULL, &cursor);
        expect_known(code);
        while (code == SWY_OK)
            code = swy_cursor_next(cursor, &name, &data);
        expect_known(code);
        expect_known(swy_cursor_close(cursor));
        break;
    }
    case 10: {
        swy_range down = SWY_RANGE_INIT;
        swy_cursor *cursor;
        swy_slice name, data;
        int code;
        down.flags = SWY_REVERSE;
        code = swy_snapshot_tree_cursor_open((swy_snapshot *)handle, (swy_tree *)other, &down, &cursor);
        expect_known(code);
        while (code == SWY_OK)
            code = swy_cursor_next(cursor, &name, &data);
        expect_known(code);
        expect_known(swy_cursor_close(cursor));
        break;
    }
    case 11: expect_known(swy_snapshot_map_get((swy_snapshot *)handle, (swy_map *)other, &key, 1, &value)); break;
    case 12: expect_known(swy_batch_tree_expect((swy_batch *)handle, (swy_tree *)other, &key, 1, chance % 3)); break;
    case 13: expect_known(swy_map_get_versioned((swy_map *)handle, &key, 1, &value, &position)); break;
    default: expect_known(swy_log_read((swy_log *)handle, chance % 100, &value)); break;
    }
    swy_bytes_free(&value);
}

static void close_any(void *handle)
{
    expect_known(swy_map_close((swy_map *)handle));
    expect_known(swy_tree_close((swy_tree *)handle));
    expect_known(swy_log_close((swy_log *)handle));
    expect_known(swy_queue_close((swy_queue *)handle));
    expect_known(swy_batch_close((swy_batch *)handle));
    expect_known(swy_snapshot_close((swy_snapshot *)handle));
}

static void *work(void *argument)
{
    unsigned state = (unsigned)(size_t)argument, round;
    for (round = 0; round < ROUNDS; round++) {
        unsigned chance = next(&state), place = next(&state) % PLACES;
        void *handle = atomic_load(&handles[place]);
        if (chance % 8 == 0)
            close_any(atomic_exchange(&handles[place], make(next(&state))));
        else if (chance % 8 == 1)
            close_any(handle); /* and leave it for others to find */
        else
            use(handle, atomic_load(&handles[next(&state) % PLACES]), next(&state));
        /* A handle with one bit turned is never another one of the same kind that is open. */
        if (handle != NULL && chance % 64 == 0)
            expect_known(swy_map_put((swy_map *)((size_t)handle ^ ((size_t)1 << (40 + chance % 24))), "k", 1, "v", 1));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    size_t i;
    EXPECT(argc == 2);
    the_area = open_area(argv[1], 64 << 20);
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    for (i = 0; i < THREADS; i++)
        EXPECT(pthread_join(threads[i], NULL) == 0);
    for (i = 0; i < PLACES; i++)
        close_any(handles[i]);
    OK(swy_area_close(the_area));
    /* Nothing is left that holds the area. */
    the_area = open_area(argv[1], 0);
    OK(swy_area_close(the_area));
    return 0;
}
