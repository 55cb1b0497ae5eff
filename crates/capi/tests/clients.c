/* What a C program does with an area: every call once, and what it refuses. argv[1] is the area's file. */
#include "switchyard_store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                    \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, swy_error());         \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define BYTES(text) (const uint8_t *)(text), strlen(text)

static void is_text(uint8_t *data, size_t length, const char *text)
{
    EXPECT(length == strlen(text) && memcmp(data, text, length) == 0);
    swy_free(data, length);
}

static void fill(const char *path)
{
    swy_area *area;
    swy_log *log;
    swy_queue *queue;
    swy_map *map;
    uint64_t position;
    uint8_t *data;
    size_t length;
    EXPECT(swy_area_open(path, 0, &area) == SWY_UNUSABLE && strlen(swy_error()) > 0);
    EXPECT(swy_area_open(path, 16 << 20, &area) == SWY_OK);
    EXPECT(swy_log_open(area, "log", &log) == SWY_OK);
    EXPECT(swy_queue_open(area, "queue", &queue) == SWY_OK);
    EXPECT(swy_map_open(area, "map", &map) == SWY_OK);
    EXPECT(swy_map_open(area, "log", &map) == SWY_INVALID);
    EXPECT(swy_log_append(NULL, BYTES("x"), &position) == SWY_INVALID);
    EXPECT(swy_log_append(log, BYTES("first"), &position) == SWY_OK && position == 0);
    EXPECT(swy_log_append(log, BYTES("second"), &position) == SWY_OK && position == 1);
    EXPECT(swy_log_trim(log, 1) == SWY_OK);
    EXPECT(swy_log_read(log, 0, &data, &length) == SWY_NONE && data == NULL);
    EXPECT(swy_queue_push(queue, BYTES("job"), &position) == SWY_OK);
    EXPECT(swy_queue_push(queue, BYTES("later"), NULL) == SWY_OK);
    EXPECT(swy_queue_pop(queue, &position, &data, &length) == SWY_OK);
    is_text(data, length, "job");
    EXPECT(swy_queue_acknowledge(queue, position) == SWY_OK);
    EXPECT(swy_map_put(map, BYTES("key"), BYTES("value")) == SWY_OK);
    EXPECT(swy_map_put(map, BYTES("gone"), NULL, 0) == SWY_OK);
    EXPECT(swy_map_remove(map, BYTES("gone")) == SWY_OK);
    EXPECT(swy_area_sync(area) == SWY_OK);
    swy_area_close(area);
    swy_log_close(log);
    swy_queue_close(queue);
    swy_map_close(map);
}

int main(int argc, char **argv)
{
    swy_area *area;
    swy_log *log;
    swy_queue *queue;
    swy_map *map;
    uint64_t first, next, position;
    uint8_t *data;
    size_t length;
    EXPECT(argc == 2);
    fill(argv[1]);
    EXPECT(swy_area_open(argv[1], 0, &area) == SWY_OK);
    EXPECT(swy_log_open(area, "log", &log) == SWY_OK);
    EXPECT(swy_queue_open(area, "queue", &queue) == SWY_OK);
    EXPECT(swy_map_open(area, "map", &map) == SWY_OK);
    EXPECT(swy_log_positions(log, &first, &next) == SWY_OK && first == 1 && next == 2);
    EXPECT(swy_log_read(log, 1, &data, &length) == SWY_OK);
    is_text(data, length, "second");
    EXPECT(swy_queue_pop(queue, &position, &data, &length) == SWY_OK);
    is_text(data, length, "later");
    EXPECT(swy_queue_give_up(queue, position) == SWY_OK);
    EXPECT(swy_queue_give_up(queue, position + 1) == SWY_NONE);
    EXPECT(swy_queue_pop(queue, &position, &data, &length) == SWY_OK);
    is_text(data, length, "later");
    EXPECT(swy_map_get(map, BYTES("key"), &data, &length) == SWY_OK);
    is_text(data, length, "value");
    EXPECT(swy_map_get(map, BYTES("gone"), &data, &length) == SWY_NONE);
    EXPECT(swy_map_length(map, &next) == SWY_OK && next == 1);
    EXPECT(swy_queue_length(queue, &next) == SWY_OK && next == 1);
    swy_map_close(map);
    swy_queue_close(queue);
    swy_log_close(log);
    swy_area_close(area);
    return 0;
}
