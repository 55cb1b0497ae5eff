/* Changes without waiting: a hundred appends in flight, and a descriptor that tells when they are durable. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <switchyard_store.h>

#define APPENDS 100

static void check(int code)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", swy_code_name(code), swy_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    swy_area *area;
    swy_log *log;
    swy_completions *completions;
    swy_completion ended[16];
    struct pollfd ready;
    uint64_t position, ticket;
    size_t durable = 0, count, i;
    if (argc != 2)
        return 2;
    options.create_bytes = 64 << 20;
    check(swy_area_open(argv[1], &options, &area));
    check(swy_log_open(area, "events", 0, &log));
    check(swy_completions_open(area, &completions));
    for (i = 0; i < APPENDS; i++) {
        check(swy_log_append_async(log, &i, sizeof i, &position, &ticket));
        check(swy_completions_add(completions, ticket, position)); /* the tag is ours: here the position */
    }
    check(swy_completions_descriptor(completions, &ready.fd));
    ready.events = POLLIN;
    while (durable < APPENDS) {
        if (poll(&ready, 1, -1) != 1)
            return 1;
        check(swy_completions_collect(completions, ended, 16, &count));
        for (i = 0; i < count; i++)
            check(ended[i].code);
        durable += count;
    }
    printf("%zu appends are durable\n", durable);
    check(swy_completions_close(completions));
    check(swy_log_close(log));
    check(swy_area_close(area));
    return 0;
}
