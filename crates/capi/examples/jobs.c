/* Work that is done once: a queue of jobs, a map of results, and batches that change both or neither.
 *
 *     cc jobs.c $(pkg-config --cflags --libs switchyard_store) -o jobs && ./jobs app.area
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <switchyard_store.h>

static void check(int code, const char *what)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, swy_error(), swy_code_name(code));
        exit(1);
    }
}

int main(int argc, char **argv)
{
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    swy_area *area;
    swy_queue *jobs;
    swy_map *results;
    swy_batch *batch;
    swy_bytes job;
    uint64_t position;
    if (argc != 2) {
        fprintf(stderr, "usage: jobs FILE\n");
        return 2;
    }
    options.create_bytes = 64 << 20;
    check(swy_area_open(argv[1], &options, &area), "open");
    check(swy_queue_open(area, "jobs", 0, &jobs), "queue");
    check(swy_map_open(area, "results", 0, &results), "map");
    check(swy_batch_open(area, &batch), "batch");

    /* Durable when the call returns. */
    check(swy_queue_push(jobs, "resize cat.png", 14, NULL), "push");
    check(swy_queue_push(jobs, "resize dog.png", 14, NULL), "push");

    while (swy_queue_pop(jobs, &position, &job) == SWY_OK) {
        printf("job %llu: %.*s\n", (unsigned long long)position, (int)job.length, (const char *)job.data);
        /* The result is there if and only if the job is not. A crash before this line brings the job again. */
        check(swy_batch_map_put(batch, results, job.data, job.length, "done", 4), "put");
        check(swy_batch_acknowledge(batch, jobs, position), "acknowledge");
        check(swy_batch_commit(batch, NULL, 0), "commit");
        swy_bytes_free(&job);
    }
    swy_batch_close(batch);
    swy_map_close(results);
    swy_queue_close(jobs);
    check(swy_area_close(area), "close");
    return 0;
}
