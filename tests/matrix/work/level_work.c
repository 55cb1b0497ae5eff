/* Loads and checks of LevelDB and RocksDB by their C interfaces, which have the same names but for the prefix.
 *
 * load DIR NOTE FIRST: four threads put keys with a sync each, and note each key that is durable; some keys are deleted again.
 * script DIR: a fixed sequence, for comparing; check DIR LINES: every noted key has its value; sum DIR: all pairs, as a hash.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef ROCKS
#include <rocksdb/c.h>
#define DB(name) rocksdb_##name
#else
#include <leveldb/c.h>
#define DB(name) leveldb_##name
#endif

enum { THREADS = 4, BATCH = 5 };
static DB(t) *base;
static DB(writeoptions_t) *durable, *lazy;
static int note;
static long first;

static void check_error(const char *what, char *error) {
    if (error) {
        printf("%s: %s\n", what, error);
        exit(1);
    }
}

static size_t value_of(long number, char *value) {
    size_t bytes = number * 37 % 4000;
    memset(value, 'a' + number % 26, bytes);
    return bytes;
}

static void open_base(const char *path) {
    char *error = NULL;
    DB(options_t) *options = DB(options_create)();
    DB(options_set_create_if_missing)(options, 1);
    /* Small, so that logs are replaced and tables are merged all the time. */
    DB(options_set_write_buffer_size)(options, 128 << 10);
    durable = DB(writeoptions_create)();
    DB(writeoptions_set_sync)(durable, 1);
    lazy = DB(writeoptions_create)();
    base = DB(open)(options, path, &error);
    check_error("open", error);
}

static void *load(void *argument) {
    long thread = (long)argument;
    char value[4096], key[64], line[64];
    for (long number = first;; number++) {
        char *error = NULL;
        size_t bytes = value_of(number, value);
        snprintf(key, sizeof key, "%ld:%ld", thread, number);
        if (number % 3) {
            DB(put)(base, durable, key, strlen(key), value, bytes, &error);
        } else {
            /* A put without a sync, which the batch after it makes durable. */
            DB(put)(base, lazy, key, strlen(key), value, bytes, &error);
            check_error("put", error);
            DB(writebatch_t) *batch = DB(writebatch_create)();
            for (int it = 0; it < BATCH; it++) {
                char name[80];
                snprintf(name, sizeof name, "batch:%s:%d", key, it);
                DB(writebatch_put)(batch, name, strlen(name), value, bytes);
            }
            DB(write)(base, durable, batch, &error);
            DB(writebatch_destroy)(batch);
        }
        check_error("put", error);
        int length = snprintf(line, sizeof line, "%s\n", key);
        if (write(note, line, length) != length)
            exit(1);
    }
    return NULL;
}

static int has(const char *key, long number) {
    char *error = NULL, expected[4096];
    size_t bytes = value_of(number, expected), found_bytes;
    DB(readoptions_t) *options = DB(readoptions_create)();
    char *found = DB(get)(base, options, key, strlen(key), &found_bytes, &error);
    check_error("get", error);
    int is_there = found && found_bytes == bytes && !memcmp(found, expected, bytes);
    free(found);
    DB(readoptions_destroy)(options);
    return is_there;
}

static int check(const char *lines) {
    char key[64], name[80];
    long lost = 0, all = 0;
    FILE *file = fopen(lines, "r");
    while (file && fscanf(file, "%63s", key) == 1) {
        long number = atol(strchr(key, ':') + 1);
        int is_there = has(key, number);
        for (int it = 0; it < BATCH && number % 3 == 0; it++) {
            snprintf(name, sizeof name, "batch:%s:%d", key, it);
            is_there = is_there && has(name, number);
        }
        all++;
        if (!is_there && lost++ < 5)
            printf("%s was acknowledged, and is not there\n", key);
    }
    printf("%ld acknowledged, %ld lost\n", all, lost);
    return lost != 0;
}

static void script(void) {
    char value[4096], key[64];
    for (long number = 0; number < 3000; number++) {
        char *error = NULL;
        size_t bytes = value_of(number, value);
        snprintf(key, sizeof key, "%ld", number * 7919 % 1500);
        DB(writeoptions_t) *how = number % 4 ? lazy : durable;
        if (number % 11)
            DB(put)(base, how, key, strlen(key), value, bytes, &error);
        else
            DB(delete)(base, how, key, strlen(key), &error);
        check_error("put", error);
        if (number % 1000 == 999)
            DB(compact_range)(base, NULL, 0, NULL, 0);
    }
}

static void sum(void) {
    uint64_t hash = 14695981039346656037u, pairs = 0;
    DB(readoptions_t) *options = DB(readoptions_create)();
    DB(readoptions_set_verify_checksums)(options, 1);
    DB(iterator_t) *it = DB(create_iterator)(base, options);
    for (DB(iter_seek_to_first)(it); DB(iter_valid)(it); DB(iter_next)(it), pairs++) {
        size_t bytes;
        const char *key = DB(iter_key)(it, &bytes);
        for (size_t at = 0; at < bytes; at++)
            hash = (hash ^ (uint8_t)key[at]) * 1099511628211u;
        const char *value = DB(iter_value)(it, &bytes);
        for (size_t at = 0; at < bytes; at++)
            hash = (hash ^ (uint8_t)value[at]) * 1099511628211u;
    }
    char *error = NULL;
    DB(iter_get_error)(it, &error);
    check_error("iterate", error);
    DB(iter_destroy)(it);
    printf("%lu pairs, %016lx\n", (unsigned long)pairs, (unsigned long)hash);
}

int main(int count, char **words) {
    int code = 0;
    if (count < 3)
        return 2;
    open_base(words[2]);
    if (!strcmp(words[1], "load")) {
        pthread_t threads[THREADS];
        note = open(words[3], O_WRONLY | O_CREAT | O_APPEND, 0666);
        first = atol(words[4]);
        for (long it = 0; it < THREADS; it++)
            pthread_create(&threads[it], NULL, load, (void *)it);
        for (int it = 0; it < THREADS; it++)
            pthread_join(threads[it], NULL);
    } else if (!strcmp(words[1], "check")) {
        code = check(words[3]);
    } else if (!strcmp(words[1], "script")) {
        script();
    } else {
        sum();
    }
    DB(close)(base);
    return code;
}
