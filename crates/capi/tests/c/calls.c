/* What a C program does with an area: every call, and what each refuses. argv[1] is the area's file. */
#include "check.h"

static void fill(const char *path)
{
    swy_area *area;
    swy_log *log;
    swy_queue *queue;
    swy_map *map;
    swy_tree *tree;
    swy_bytes value;
    uint64_t position, ticket, durable;
    EXPECT(swy_area_open(path, NULL, &area) == SWY_MISSING && area == NULL && strlen(swy_error()) > 0);
    area = open_area(path, 16 << 20);
    OK(swy_log_open(area, "log", 0, &log));
    OK(swy_queue_open(area, "queue", 0, &queue));
    OK(swy_map_open(area, "map", SWY_LAZY, &map));
    OK(swy_tree_open(area, "tree", 0, &tree));
    OK(swy_log_append(log, TEXT("first"), &position));
    EXPECT(position == 0);
    OK(swy_log_append_async(log, TEXT("second"), &position, &ticket));
    EXPECT(position == 1);
    OK(swy_area_wait(area, ticket));
    OK(swy_area_durable(area, &durable));
    EXPECT(durable >= ticket);
    OK(swy_log_trim(log, 1));
    EXPECT(swy_log_read(log, 0, &value) == SWY_NONE && value.data == NULL);
    OK(swy_queue_push(queue, TEXT("job"), &position));
    OK(swy_queue_push_async(queue, TEXT("later"), NULL, NULL));
    OK(swy_queue_pop(queue, &position, &value));
    EXPECT(is_text(&value, "job"));
    OK(swy_queue_acknowledge_async(queue, position, &ticket));
    OK(swy_area_wait(area, ticket));
    OK(swy_map_put(map, TEXT("key"), TEXT("value")));
    OK(swy_map_put_async(map, TEXT("gone"), NULL, 0, NULL));
    OK(swy_map_get(map, TEXT("gone"), &value));
    EXPECT(value.data != NULL && value.length == 0);
    swy_bytes_free(&value);
    swy_bytes_free(&value);
    OK(swy_map_remove_async(map, TEXT("gone"), &ticket));
    OK(swy_area_wait(area, ticket));
    OK(swy_tree_put(tree, TEXT("b"), TEXT("2")));
    OK(swy_tree_put(tree, TEXT("a"), TEXT("1")));
    OK(swy_tree_put_async(tree, TEXT("c"), TEXT("3"), &ticket));
    OK(swy_tree_put(tree, TEXT("d"), TEXT("4")));
    OK(swy_tree_remove(tree, TEXT("d")));
    OK(swy_tree_put(tree, "\0\xff", 2, "\0", 1));
    OK(swy_tree_remove_async(tree, "\0\xff", 2, NULL));
    OK(swy_area_sync(area));
    uint64_t before, has;
    OK(swy_area_grow(area, 0, &before));
    OK(swy_area_grow(area, before + 1, &has));
    EXPECT(has > before);
    EXPECT(swy_area_grow(area, UINT64_MAX, &has) != SWY_OK);
    OK(swy_area_close(area));
    OK(swy_log_close(log));
    OK(swy_queue_close(queue));
    OK(swy_map_close(map));
    OK(swy_tree_close(tree));
}

static void look(swy_area *area)
{
    swy_log *log;
    swy_queue *queue;
    swy_map *map;
    swy_bytes value;
    uint64_t first, next, position;
    OK(swy_log_open(area, "log", SWY_EXISTING, &log));
    OK(swy_queue_open(area, "queue", SWY_EXISTING, &queue));
    OK(swy_map_open(area, "map", SWY_EXISTING, &map));
    OK(swy_log_positions(log, &first, &next));
    EXPECT(first == 1 && next == 2);
    OK(swy_log_length(log, &next));
    EXPECT(next == 1);
    OK(swy_log_read(log, 1, &value));
    EXPECT(is_text(&value, "second"));
    OK(swy_queue_positions(queue, &first, &next));
    EXPECT(first == 1 && next == 2);
    OK(swy_queue_read(queue, 1, &value));
    EXPECT(is_text(&value, "later"));
    EXPECT(swy_queue_read(queue, 0, &value) == SWY_NONE);
    OK(swy_queue_pop(queue, &position, &value));
    EXPECT(is_text(&value, "later"));
    OK(swy_queue_give_up(queue, position));
    EXPECT(swy_queue_give_up(queue, position + 1) == SWY_NONE);
    OK(swy_queue_pop(queue, &position, &value));
    EXPECT(is_text(&value, "later"));
    EXPECT(swy_queue_pop(queue, &position, &value) == SWY_NONE && value.data == NULL);
    OK(swy_map_get(map, TEXT("key"), &value));
    EXPECT(is_text(&value, "value"));
    EXPECT(swy_map_get(map, TEXT("gone"), &value) == SWY_NONE);
    OK(swy_map_length(map, &next));
    EXPECT(next == 1);
    OK(swy_queue_length(queue, &next));
    EXPECT(next == 1);
    OK(swy_map_close(map));
    OK(swy_queue_close(queue));
    OK(swy_log_close(log));
}

static size_t count(swy_tree *tree, const swy_range *range, const char *expected)
{
    swy_cursor *cursor;
    swy_slice key, value;
    size_t found = 0;
    int code;
    OK(swy_tree_cursor_open(tree, range, &cursor));
    while ((code = swy_cursor_next(cursor, &key, &value)) == SWY_OK) {
        EXPECT(key.length == 1 && *(const char *)key.data == expected[found]);
        found++;
    }
    EXPECT(code == SWY_NONE && swy_cursor_next(cursor, &key, &value) == SWY_NONE && key.data == NULL);
    OK(swy_cursor_close(cursor));
    return found;
}

static void order(swy_area *area)
{
    swy_range range = SWY_RANGE_INIT;
    swy_tree *tree;
    swy_map *map;
    swy_cursor *cursor;
    swy_slice key, value;
    swy_bytes bytes;
    uint64_t entries;
    char number[16];
    int i;
    OK(swy_tree_open(area, "tree", 0, &tree));
    OK(swy_tree_length(tree, &entries));
    EXPECT(entries == 3);
    OK(swy_tree_get(tree, TEXT("c"), &bytes));
    EXPECT(is_text(&bytes, "3"));
    EXPECT(count(tree, NULL, "abc") == 3 && count(tree, &range, "abc") == 3);
    range.from = "a", range.from_length = 1, range.from_bound = SWY_EXCLUDED;
    EXPECT(count(tree, &range, "bc") == 2);
    range.to = "c", range.to_length = 1, range.to_bound = SWY_EXCLUDED;
    EXPECT(count(tree, &range, "b") == 1);
    range.from_bound = range.to_bound = SWY_INCLUDED;
    EXPECT(count(tree, &range, "abc") == 3);
    range.flags = SWY_KEYS_ONLY;
    EXPECT(count(tree, &range, "abc") == 3);
    range.from = "d";
    EXPECT(count(tree, &range, "") == 0);
    range.from = "a", range.flags = SWY_REVERSE;
    EXPECT(count(tree, &range, "cba") == 3);
    range.flags = SWY_REVERSE | SWY_KEYS_ONLY, range.from_bound = SWY_EXCLUDED;
    EXPECT(count(tree, &range, "cb") == 2);
    range.to = "b", range.to_bound = SWY_EXCLUDED;
    EXPECT(count(tree, &range, "") == 0);
    range.flags = 4;
    EXPECT(swy_tree_cursor_open(tree, &range, &cursor) == SWY_INVALID && cursor == NULL);
    range.flags = 0, range.to_bound = 3;
    EXPECT(swy_tree_cursor_open(tree, &range, &cursor) == SWY_INVALID);
    range.to_bound = SWY_UNBOUNDED;
    EXPECT(swy_tree_cursor_open(tree, &range, &cursor) == SWY_INVALID);
    OK(swy_map_open(area, "many", SWY_LAZY, &map));
    for (i = 0; i < 1000; i++) {
        snprintf(number, sizeof number, "%06d", i);
        OK(swy_map_put(map, TEXT(number), TEXT(number)));
        OK(swy_tree_put_async(tree, TEXT(number), TEXT(number), NULL));
    }
    OK(swy_area_sync(area));
    OK(swy_map_cursor_open(map, 0, &cursor));
    for (i = 0; i < 1000; i++) {
        snprintf(number, sizeof number, "%06d", i);
        OK(swy_cursor_next(cursor, &key, &value));
        EXPECT(holds(key, number) && holds(value, number));
    }
    EXPECT(swy_cursor_next(cursor, &key, &value) == SWY_NONE);
    OK(swy_cursor_close(cursor));
    OK(swy_tree_cursor_open(tree, NULL, &cursor));
    for (i = 0; i < 1000; i++) {
        snprintf(number, sizeof number, "%06d", i);
        OK(swy_cursor_next(cursor, &key, &value));
        EXPECT(holds(key, number) && holds(value, number));
    }
    OK(swy_cursor_next(cursor, &key, &value));
    EXPECT(holds(key, "a"));
    OK(swy_cursor_close(cursor));
    for (i = 0; i < 2; i++) {
        int left;
        memset(&range, 0, sizeof range);
        range.size = sizeof range, range.flags = i ? SWY_REVERSE : SWY_REVERSE | SWY_KEYS_ONLY;
        range.to = "a", range.to_length = 1, range.to_bound = SWY_EXCLUDED;
        OK(swy_tree_cursor_open(tree, &range, &cursor));
        for (left = 999; left >= 0; left--) {
            snprintf(number, sizeof number, "%06d", left);
            OK(swy_cursor_next(cursor, &key, &value));
            EXPECT(holds(key, number) && holds(value, i ? number : ""));
        }
        EXPECT(swy_cursor_next(cursor, &key, &value) == SWY_NONE);
        OK(swy_cursor_close(cursor));
    }
    EXPECT(swy_map_cursor_open(map, SWY_REVERSE, &cursor) == SWY_INVALID && cursor == NULL);
    OK(swy_map_cursor_open(map, SWY_KEYS_ONLY, &cursor));
    OK(swy_cursor_next(cursor, &key, &value));
    EXPECT(holds(key, "000000") && value.length == 0);
    OK(swy_cursor_close(cursor));
    OK(swy_map_close(map));
    OK(swy_tree_close(tree));
}

static void many(swy_area *area)
{
    swy_slice keys[3] = { { "a", 1 }, { "none", 4 }, { "c", 1 } };
    swy_bytes values[3];
    swy_tree *tree;
    swy_map *map;
    OK(swy_tree_open(area, "tree", 0, &tree));
    OK(swy_map_open(area, "map", 0, &map));
    OK(swy_tree_get_many(tree, keys, 3, values));
    EXPECT(is_text(&values[0], "1") && values[1].data == NULL && is_text(&values[2], "3"));
    OK(swy_map_get_many(map, keys, 3, values));
    EXPECT(values[0].data == NULL && values[1].data == NULL && values[2].data == NULL);
    OK(swy_map_get_many(map, NULL, 0, NULL));
    EXPECT(swy_map_get_many(map, NULL, 1, values) == SWY_INVALID && swy_map_get_many(map, keys, 3, NULL) == SWY_INVALID);
    EXPECT(swy_map_get_many(map, keys, (size_t)-1, values) == SWY_TOO_LARGE);
    keys[1].data = NULL;
    EXPECT(swy_tree_get_many(tree, keys, 3, values) == SWY_INVALID && values[0].data == NULL);
    OK(swy_map_close(map));
    OK(swy_tree_close(tree));
}

static void together(swy_area *area)
{
    swy_batch *batch;
    swy_log *log;
    swy_queue *queue;
    swy_map *map;
    swy_tree *tree;
    swy_bytes value;
    uint64_t positions[2], ticket, next;
    size_t changes, additions;
    OK(swy_log_open(area, "batch log", 0, &log));
    OK(swy_queue_open(area, "batch queue", 0, &queue));
    OK(swy_map_open(area, "batch map", 0, &map));
    OK(swy_tree_open(area, "batch tree", 0, &tree));
    OK(swy_batch_open(area, &batch));
    OK(swy_batch_commit(batch, NULL, 0));
    OK(swy_batch_append(batch, log, TEXT("0")));
    OK(swy_batch_push(batch, queue, TEXT("0")));
    OK(swy_batch_map_put(batch, map, TEXT("m"), TEXT("1")));
    OK(swy_batch_tree_put(batch, tree, TEXT("t"), TEXT("2")));
    OK(swy_batch_length(batch, &changes, &additions));
    EXPECT(changes == 4 && additions == 2);
    EXPECT(swy_batch_commit(batch, positions, 1) == SWY_INVALID);
    OK(swy_batch_commit(batch, positions, 2));
    EXPECT(positions[0] == 0 && positions[1] == 0);
    OK(swy_batch_length(batch, &changes, NULL));
    EXPECT(changes == 0);
    OK(swy_batch_trim(batch, log, 1));
    OK(swy_batch_acknowledge(batch, queue, 0));
    OK(swy_batch_map_remove(batch, map, TEXT("m")));
    OK(swy_batch_tree_remove(batch, tree, TEXT("t")));
    OK(swy_batch_submit(batch, NULL, 0, &ticket));
    OK(swy_area_wait(area, ticket));
    EXPECT(swy_log_read(log, 0, &value) == SWY_NONE && swy_map_get(map, TEXT("m"), &value) == SWY_NONE);
    OK(swy_queue_length(queue, &next));
    EXPECT(next == 0);
    /* What the batch itself adds may be trimmed by it. */
    OK(swy_batch_append(batch, log, TEXT("short")));
    OK(swy_batch_trim(batch, log, 2));
    OK(swy_batch_commit(batch, positions, 2));
    EXPECT(positions[0] == 1 && swy_log_read(log, 1, &value) == SWY_NONE);
    OK(swy_batch_append(batch, log, TEXT("never")));
    OK(swy_batch_clear(batch));
    OK(swy_batch_commit(batch, positions, 2));
    OK(swy_log_positions(log, NULL, &next));
    EXPECT(next == 2);
    OK(swy_batch_close(batch));
    OK(swy_log_close(log));
    OK(swy_queue_close(queue));
    OK(swy_map_close(map));
    OK(swy_tree_close(tree));
}

/* Batches that expect versions of keys, or that keys are missing. */
static void expect(swy_area *area)
{
    swy_batch *batch;
    swy_map *map;
    swy_tree *tree;
    swy_log *log;
    swy_bytes value, name, key;
    uint64_t version, later, ticket;
    size_t changes;
    OK(swy_map_open(area, "batch map", 0, &map));
    OK(swy_tree_open(area, "batch tree", 0, &tree));
    OK(swy_log_open(area, "batch log", 0, &log));
    version = 7;
    EXPECT(swy_map_get_versioned(map, TEXT("v"), &value, &version) == SWY_NONE && value.data == NULL && version == 0);
    EXPECT(swy_map_get_versioned(map, TEXT("v"), &value, NULL) == SWY_INVALID);
    EXPECT(swy_map_get_versioned(map, TEXT("v"), NULL, &version) == SWY_INVALID);
    OK(swy_batch_open(area, &batch));
    EXPECT(swy_batch_conflict(batch, &name, &key) == SWY_NONE && name.data == NULL && key.data == NULL);
    /* Only if it is missing. */
    OK(swy_batch_map_expect(batch, map, TEXT("v"), 0));
    OK(swy_batch_map_put(batch, map, TEXT("v"), TEXT("1")));
    OK(swy_batch_commit(batch, NULL, 0));
    OK(swy_map_get_versioned(map, TEXT("v"), &value, &version));
    EXPECT(is_text(&value, "1") && version != 0);
    OK(swy_batch_map_expect(batch, map, TEXT("v"), version));
    OK(swy_batch_tree_expect(batch, tree, TEXT("v"), 0));
    OK(swy_batch_length(batch, &changes, NULL));
    EXPECT(changes == 0);
    OK(swy_batch_map_put(batch, map, TEXT("v"), TEXT("1")));
    OK(swy_batch_tree_put(batch, tree, TEXT("v"), TEXT("2")));
    OK(swy_batch_submit(batch, NULL, 0, &ticket));
    OK(swy_area_wait(area, ticket));
    /* The same value is another write. */
    OK(swy_map_get_versioned(map, TEXT("v"), &value, &later));
    EXPECT(is_text(&value, "1") && later != version);
    OK(swy_tree_get_versioned(tree, TEXT("v"), &value, &later));
    EXPECT(is_text(&value, "2") && later != 0);
    OK(swy_batch_tree_expect(batch, tree, TEXT("v"), later));
    OK(swy_batch_map_expect(batch, map, TEXT("v"), version));
    OK(swy_batch_tree_put(batch, tree, TEXT("v"), TEXT("never")));
    EXPECT(swy_batch_commit(batch, NULL, 0) == SWY_CONFLICT);
    EXPECT(strstr(swy_error(), "\"v\"") != NULL && strstr(swy_error(), "batch map") != NULL);
    OK(swy_batch_conflict(batch, &name, &key));
    EXPECT(is_text(&name, "batch map") && is_text(&key, "v"));
    EXPECT(swy_batch_submit(batch, NULL, 0, &ticket) == SWY_CONFLICT);
    EXPECT(swy_batch_conflict(batch, &name, NULL) == SWY_INVALID);
    /* The batch is as before, until it is cleared. */
    OK(swy_batch_length(batch, &changes, NULL));
    EXPECT(changes == 1);
    OK(swy_batch_clear(batch));
    EXPECT(swy_batch_conflict(batch, &name, &key) == SWY_NONE);
    OK(swy_batch_commit(batch, NULL, 0));
    OK(swy_tree_get(tree, TEXT("v"), &value));
    EXPECT(is_text(&value, "2"));
    EXPECT(swy_batch_map_expect(batch, (swy_map *)tree, TEXT("v"), 0) == SWY_HANDLE);
    EXPECT(swy_batch_map_expect(batch, (swy_map *)log, TEXT("v"), 0) == SWY_HANDLE);
    EXPECT(swy_batch_map_expect(batch, map, NULL, 1, 0) == SWY_INVALID);
    EXPECT(swy_batch_map_expect(batch, map, "k", SWY_KEY_BYTES_MAX + 1, 0) == SWY_TOO_LARGE);
    OK(swy_batch_close(batch));
    OK(swy_map_remove(map, TEXT("v")));
    OK(swy_log_close(log));
    OK(swy_tree_close(tree));
    OK(swy_map_close(map));
}

/* What a cursor has, one key of one letter after the other, is closed. */
static void drain(swy_cursor *cursor, const char *keys, const char *data)
{
    swy_slice key, value;
    size_t i;
    for (i = 0; i < strlen(keys); i++) {
        OK(swy_cursor_next(cursor, &key, &value));
        EXPECT(key.length == 1 && *(const char *)key.data == keys[i] && holds(value, data));
    }
    EXPECT(swy_cursor_next(cursor, &key, &value) == SWY_NONE);
    OK(swy_cursor_close(cursor));
}

/* What was there stays, whatever happens to it. */
static void keep(swy_area *area)
{
    swy_slice keys[2] = { { "a", 1 }, { "z", 1 } };
    swy_range range = SWY_RANGE_INIT;
    swy_snapshot *snapshot;
    swy_map *map, *later;
    swy_tree *tree;
    swy_log *log;
    swy_queue *queue;
    swy_cursor *cursor;
    swy_bytes value, values[2];
    uint64_t first, next;
    OK(swy_map_open(area, "kept map", 0, &map));
    OK(swy_tree_open(area, "kept tree", 0, &tree));
    OK(swy_log_open(area, "kept log", 0, &log));
    OK(swy_queue_open(area, "kept queue", 0, &queue));
    OK(swy_map_put(map, TEXT("a"), TEXT("old")));
    OK(swy_map_put(map, TEXT("b"), TEXT("old")));
    OK(swy_tree_put(tree, TEXT("a"), TEXT("old")));
    OK(swy_tree_put(tree, TEXT("b"), TEXT("old")));
    OK(swy_tree_put(tree, TEXT("c"), TEXT("old")));
    OK(swy_log_append(log, TEXT("x"), NULL));
    EXPECT(swy_snapshot_open(area, NULL) == SWY_INVALID);
    OK(swy_snapshot_open(area, &snapshot));
    OK(swy_map_open(area, "kept later", 0, &later));
    OK(swy_map_put(later, TEXT("a"), TEXT("new")));
    OK(swy_map_put(map, TEXT("a"), TEXT("new")));
    OK(swy_map_put(map, TEXT("z"), TEXT("new")));
    OK(swy_map_remove(map, TEXT("b")));
    OK(swy_tree_put(tree, TEXT("a"), TEXT("new")));
    OK(swy_tree_put(tree, TEXT("z"), TEXT("new")));
    OK(swy_tree_remove(tree, TEXT("b")));
    OK(swy_log_append(log, TEXT("y"), NULL));
    OK(swy_queue_push(queue, TEXT("y"), NULL));
    OK(swy_snapshot_map_get(snapshot, map, TEXT("b"), &value));
    EXPECT(is_text(&value, "old"));
    OK(swy_snapshot_tree_get(snapshot, tree, TEXT("b"), &value));
    EXPECT(is_text(&value, "old"));
    EXPECT(swy_snapshot_map_get(snapshot, map, TEXT("z"), &value) == SWY_NONE && value.data == NULL);
    EXPECT(swy_snapshot_map_get(snapshot, later, TEXT("a"), &value) == SWY_NONE);
    OK(swy_snapshot_map_get_many(snapshot, map, keys, 2, values));
    EXPECT(is_text(&values[0], "old") && values[1].data == NULL);
    OK(swy_snapshot_tree_get_many(snapshot, tree, keys, 2, values));
    EXPECT(is_text(&values[0], "old") && values[1].data == NULL);
    OK(swy_snapshot_map_cursor_open(snapshot, map, 0, &cursor));
    drain(cursor, "ab", "old");
    OK(swy_snapshot_map_cursor_open(snapshot, map, SWY_KEYS_ONLY, &cursor));
    drain(cursor, "ab", "");
    OK(swy_snapshot_map_cursor_open(snapshot, later, 0, &cursor));
    drain(cursor, "", "");
    OK(swy_snapshot_tree_cursor_open(snapshot, tree, NULL, &cursor));
    drain(cursor, "abc", "old");
    range.from = "b", range.from_length = 1, range.from_bound = SWY_INCLUDED, range.flags = SWY_REVERSE;
    OK(swy_snapshot_tree_cursor_open(snapshot, tree, &range, &cursor));
    drain(cursor, "cb", "old");
    range.flags = SWY_REVERSE | SWY_KEYS_ONLY;
    OK(swy_snapshot_tree_cursor_open(snapshot, tree, &range, &cursor));
    drain(cursor, "cb", "");
    OK(swy_snapshot_log_positions(snapshot, log, &first, &next));
    EXPECT(first == 0 && next == 1);
    OK(swy_snapshot_queue_positions(snapshot, queue, NULL, &next));
    EXPECT(next == 0);
    OK(swy_area_drop(area, "kept tree"));
    OK(swy_snapshot_tree_get(snapshot, tree, TEXT("c"), &value));
    EXPECT(is_text(&value, "old"));
    OK(swy_snapshot_tree_cursor_open(snapshot, tree, NULL, &cursor));
    /* Its end does not end what a cursor reads. */
    OK(swy_snapshot_close(snapshot));
    drain(cursor, "abc", "old");
    EXPECT(swy_snapshot_map_get(snapshot, map, TEXT("a"), &value) == SWY_HANDLE && value.data == NULL);
    EXPECT(strstr(swy_error(), "the snapshot is closed") != NULL && swy_snapshot_close(snapshot) == SWY_HANDLE);
    EXPECT(swy_snapshot_log_positions(snapshot, log, &first, &next) == SWY_HANDLE);
    OK(swy_snapshot_close(NULL));
    OK(swy_area_drop(area, "kept map"));
    OK(swy_area_drop(area, "kept later"));
    OK(swy_area_drop(area, "kept log"));
    OK(swy_area_drop(area, "kept queue"));
    OK(swy_map_close(map));
    OK(swy_map_close(later));
    OK(swy_tree_close(tree));
    OK(swy_log_close(log));
    OK(swy_queue_close(queue));
}

/* Snapshots that are used wrongly, that are too many, and that end. */
static void lose(swy_area *area)
{
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    swy_stats stats = SWY_STATS_INIT;
    swy_area *other;
    swy_snapshot *snapshot, *all[64];
    swy_map *map, *its_map;
    swy_tree *tree;
    swy_log *log;
    swy_cursor *cursors[2], *none;
    swy_slice key, data;
    swy_bytes value;
    uint64_t position;
    char name[16], large[4000];
    int i, round;
    options.create_bytes = 16 << 20, options.index_bytes_max = 1 << 20;
    OK(swy_area_open_memory(&options, &other));
    OK(swy_map_open(area, "map", 0, &map));
    OK(swy_map_open(other, "map", 0, &its_map));
    OK(swy_tree_open(other, "tree", 0, &tree));
    OK(swy_log_open(other, "log", 0, &log));
    OK(swy_tree_put(tree, TEXT("k"), TEXT("v")));
    OK(swy_snapshot_open(other, &snapshot));
    EXPECT(swy_snapshot_map_get(snapshot, map, TEXT("key"), &value) == SWY_INVALID);
    EXPECT(strstr(swy_error(), "another area than the snapshot") != NULL);
    EXPECT(swy_snapshot_map_cursor_open(snapshot, map, 0, &none) == SWY_INVALID && none == NULL);
    EXPECT(swy_snapshot_map_get(snapshot, (swy_map *)tree, TEXT("k"), &value) == SWY_HANDLE);
    EXPECT(swy_snapshot_tree_cursor_open(snapshot, (swy_tree *)log, NULL, &none) == SWY_HANDLE && none == NULL);
    EXPECT(swy_snapshot_log_positions(snapshot, (swy_log *)tree, &position, &position) == SWY_HANDLE);
    EXPECT(swy_snapshot_map_get((swy_snapshot *)its_map, its_map, TEXT("k"), &value) == SWY_HANDLE);
    EXPECT(swy_snapshot_map_get(snapshot, its_map, NULL, 1, &value) == SWY_INVALID);
    EXPECT(swy_snapshot_map_get(snapshot, its_map, TEXT("k"), NULL) == SWY_INVALID);
    EXPECT(swy_snapshot_map_cursor_open(snapshot, its_map, SWY_REVERSE, &none) == SWY_INVALID);
    for (i = 0; i < 63; i++)
        OK(swy_snapshot_open(other, &all[i]));
    EXPECT(swy_snapshot_open(other, &all[63]) == SWY_FULL && all[63] == NULL && strstr(swy_error(), "64") != NULL);
    OK(swy_area_stats(other, &stats));
    EXPECT(stats.snapshots == 64 && stats.snapshots_ended == 0 && stats.tables_damaged == 0 && stats.table_damaged_at == 0);
    for (i = 0; i < 63; i++)
        OK(swy_snapshot_close(all[i]));
    OK(swy_snapshot_close(snapshot));
    /* One that would keep too much ends, in the midst of a cursor as well; the area goes on. */
    memset(large, 'x', sizeof large);
    for (i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "%04d", i);
        OK(swy_tree_put(tree, TEXT(name), large, sizeof large));
        OK(swy_map_put(its_map, TEXT(name), large, sizeof large));
    }
    OK(swy_snapshot_open(other, &snapshot));
    OK(swy_snapshot_tree_cursor_open(snapshot, tree, NULL, &cursors[0]));
    OK(swy_snapshot_map_cursor_open(snapshot, its_map, 0, &cursors[1]));
    for (i = 0; i < 2; i++)
        OK(swy_cursor_next(cursors[i], &key, &data));
    for (round = 0; stats.snapshots_ended == 0; round++) {
        EXPECT(round < 100);
        for (i = 0; i < 300; i++) {
            snprintf(name, sizeof name, "%04d", i);
            OK(swy_tree_put(tree, TEXT(name), large, sizeof large));
        }
        OK(swy_area_stats(other, &stats));
    }
    EXPECT(swy_snapshot_tree_get(snapshot, tree, TEXT("0000"), &value) == SWY_ENDED && value.data == NULL);
    EXPECT(swy_snapshot_tree_cursor_open(snapshot, tree, NULL, &none) == SWY_ENDED
           || swy_cursor_next(none, &key, &data) == SWY_ENDED);
    EXPECT(swy_snapshot_map_cursor_open(snapshot, its_map, 0, &none) == SWY_ENDED && none == NULL);
    EXPECT(swy_snapshot_log_positions(snapshot, log, &position, &position) == SWY_ENDED);
    for (i = 0; i < 2; i++) {
        int code = SWY_OK;
        for (round = 0; code == SWY_OK; round++)
            code = swy_cursor_next(cursors[i], &key, &data);
        EXPECT(code == SWY_ENDED && round < 300 && strstr(swy_error(), "ended") != NULL);
        OK(swy_cursor_close(cursors[i]));
    }
    OK(swy_snapshot_close(snapshot));
    OK(swy_snapshot_open(other, &snapshot));
    OK(swy_snapshot_tree_get(snapshot, tree, TEXT("0000"), &value));
    swy_bytes_free(&value);
    /* The area stays as long as the snapshot does. */
    OK(swy_area_close(other));
    OK(swy_map_close(its_map));
    OK(swy_log_close(log));
    OK(swy_snapshot_tree_get(snapshot, tree, TEXT("k"), &value));
    EXPECT(is_text(&value, "v"));
    OK(swy_tree_close(tree));
    OK(swy_snapshot_close(snapshot));
    OK(swy_map_close(map));
}

static void list(swy_area *area)
{
    swy_structure structure = SWY_STRUCTURE_INIT;
    swy_stats stats = SWY_STATS_INIT;
    swy_listing *listing;
    swy_map *map;
    int found = 0, code;
    OK(swy_listing_open(area, &listing));
    while ((code = swy_listing_next(listing, &structure)) == SWY_OK) {
        EXPECT(structure.name_length == strlen(structure.name));
        if (strcmp(structure.name, "many") == 0)
            EXPECT(structure.kind == SWY_KIND_MAP && structure.is_lazy == 1 && structure.entries == 1000);
        found++;
    }
    EXPECT(code == SWY_NONE && found == 9);
    OK(swy_listing_close(listing));
    OK(swy_map_open(area, "many", 0, &map));
    OK(swy_area_drop(area, "many"));
    EXPECT(swy_area_drop(area, "many") == SWY_MISSING);
    EXPECT(swy_map_put(map, TEXT("k"), TEXT("v")) == SWY_MISSING);
    /* Bug: a dropped structure read like an empty one. */
    {
        swy_bytes value;
        swy_cursor *cursor;
        uint64_t entries;
        EXPECT(swy_map_get(map, TEXT("k"), &value) == SWY_MISSING && value.data == NULL);
        EXPECT(swy_map_length(map, &entries) == SWY_MISSING);
        EXPECT(swy_map_cursor_open(map, 0, &cursor) == SWY_MISSING);
    }
    OK(swy_map_close(map));
    EXPECT(swy_map_open(area, "many", SWY_EXISTING, &map) == SWY_MISSING);
    {
        const char *text = "x";
        int code = swy_area_warning(area, &text);
        EXPECT((code == SWY_NONE && text == NULL) || (code == SWY_OK && strlen(text) > 10));
        EXPECT(swy_area_warning(area, NULL) == SWY_INVALID);
    }
    OK(swy_area_stats(area, &stats));
    EXPECT(stats.size == sizeof stats && stats.records > 0 && stats.opened >= 2 && stats.damaged_at == UINT64_MAX);
    EXPECT(stats.batch_bytes_max > 1000 && stats.live_bytes_max > stats.live_bytes);
}

/* Arguments that no call takes. */
static void refuse(const char *path, swy_area *area)
{
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    struct {
        swy_area_options known;
        uint64_t later;
    } newer = { SWY_AREA_OPTIONS_INIT, 0 };
    struct {
        swy_stats known;
        uint64_t later;
    } stats = { SWY_STATS_INIT, 7 };
    swy_area *other, *memory;
    swy_log *log;
    swy_map *map;
    swy_queue *queue;
    swy_batch *batch;
    swy_bytes value;
    uint64_t position;
    char name[80], *key = (char *)calloc(1, 70000), *large = (char *)calloc(1, 1 << 20);
    memset(name, 'n', sizeof name);
    name[65] = 0;
    OK(swy_log_open(area, "log", 0, &log));
    OK(swy_queue_open(area, "queue", 0, &queue));
    OK(swy_map_open(area, "map", 0, &map));
    EXPECT(swy_map_open(area, "log", 0, NULL) == SWY_INVALID);
    {
        swy_map *none = map;
        EXPECT(swy_map_open(area, "log", 0, &none) == SWY_KIND && none == NULL);
        EXPECT(swy_map_open(area, "log", SWY_EXISTING, &none) == SWY_KIND);
        EXPECT(swy_map_open(area, name, 0, &none) == SWY_TOO_LARGE);
        EXPECT(swy_map_open(area, "", 0, &none) == SWY_INVALID);
        EXPECT(swy_map_open(area, NULL, 0, &none) == SWY_INVALID);
        EXPECT(swy_map_open(area, "\xff", 0, &none) == SWY_INVALID);
        EXPECT(swy_map_open(area, "x", 4, &none) == SWY_INVALID);
        EXPECT(swy_map_open(area, "x", SWY_EXISTING, &none) == SWY_MISSING);
    }
    EXPECT(swy_area_open(path, NULL, &other) == SWY_BUSY && other == NULL);
    EXPECT(swy_area_open("", NULL, &other) == SWY_INVALID && swy_area_open(NULL, NULL, &other) == SWY_INVALID);
    EXPECT(swy_area_open("/dev/null", NULL, &other) == SWY_UNUSABLE);
    EXPECT(swy_area_open_in_catalog("/nowhere", "x", NULL, &other) == SWY_UNUSABLE);
    options.size = 8;
    EXPECT(swy_area_open(path, &options, &other) == SWY_INVALID);
    options.size = sizeof options, options.flags = 8, options.cache_bytes_max = 1 << 20;
    EXPECT(swy_area_open(path, &options, &other) == SWY_INVALID);
    options.flags = 0, options.writes_in_flight_max = 33;
    EXPECT(swy_area_open(path, &options, &other) == SWY_INVALID);
    /* A program of a later version: its fields may be zero, and not more. */
    newer.known.size = sizeof newer, newer.known.create_bytes = 8 << 20, newer.later = 1;
    EXPECT(swy_area_open_memory(&newer.known, &memory) == SWY_INVALID);
    newer.later = 0;
    OK(swy_area_open_memory(&newer.known, &memory));
    stats.known.size = sizeof stats;
    OK(swy_area_stats(memory, &stats.known));
    EXPECT(stats.later == 0 && stats.known.opened > 0);
    /* A program of the first version: what it does not know is left alone. */
    stats.known.size = offsetof(swy_stats, snapshots), stats.known.snapshots = 7;
    OK(swy_area_stats(memory, &stats.known));
    EXPECT(stats.known.snapshots == 7);
    EXPECT(swy_area_open_memory(NULL, &other) == SWY_INVALID);
    OK(swy_batch_open(memory, &batch));
    EXPECT(swy_batch_append(batch, log, TEXT("x")) == SWY_INVALID);
    OK(swy_batch_close(batch));
    EXPECT(swy_log_append(log, NULL, 1, NULL) == SWY_INVALID);
    OK(swy_log_append(log, NULL, 0, NULL));
    EXPECT(swy_log_append(log, large, 1 << 20, NULL) == SWY_TOO_LARGE);
    EXPECT(swy_log_append(log, large, (size_t)-1, NULL) == SWY_TOO_LARGE);
    EXPECT(swy_map_put(map, key, 65536, TEXT("v")) == SWY_TOO_LARGE);
    EXPECT(swy_map_get(map, key, 70000, &value) == SWY_TOO_LARGE);
    OK(swy_map_put(map, key, SWY_KEY_BYTES_MAX, TEXT("v")));
    EXPECT(swy_map_get(map, TEXT("key"), NULL) == SWY_INVALID);
    /* Beyond the end there is nothing to forget, and what comes later stays. */
    OK(swy_log_trim(log, UINT64_MAX));
    OK(swy_log_append(log, TEXT("stays"), &position));
    OK(swy_log_read(log, position, &value));
    EXPECT(is_text(&value, "stays"));
    OK(swy_queue_acknowledge(queue, UINT64_MAX));
    OK(swy_queue_push(queue, TEXT("stays"), &position));
    OK(swy_queue_read(queue, position, &value));
    EXPECT(is_text(&value, "stays"));
    EXPECT(swy_area_wait(area, UINT64_MAX) == SWY_INVALID);
    /* Handles that are none. */
    EXPECT(swy_log_append(NULL, TEXT("x"), &position) == SWY_HANDLE);
    EXPECT(swy_log_append((swy_log *)map, TEXT("x"), &position) == SWY_HANDLE);
    EXPECT(swy_log_append((swy_log *)name, TEXT("x"), &position) == SWY_HANDLE);
    EXPECT(swy_log_append((swy_log *)8, TEXT("x"), &position) == SWY_HANDLE);
    OK(swy_log_close(log));
    EXPECT(swy_log_append(log, TEXT("x"), &position) == SWY_HANDLE && strstr(swy_error(), "closed") != NULL);
    EXPECT(swy_log_close(log) == SWY_HANDLE && swy_map_close((swy_map *)queue) == SWY_HANDLE);
    OK(swy_log_close(NULL));
    OK(swy_area_close(memory));
    EXPECT(swy_area_sync(memory) == SWY_HANDLE);
    OK(swy_queue_close(queue));
    OK(swy_map_close(map));
    free(key);
    free(large);
}

/* As another process would. */
static void follow(const char *path, swy_area *area)
{
    swy_follower_options options = SWY_FOLLOWER_OPTIONS_INIT;
    swy_moment first = SWY_MOMENT_INIT, later = SWY_MOMENT_INIT;
    swy_structure structure = SWY_STRUCTURE_INIT;
    swy_range range = SWY_RANGE_INIT;
    swy_follower *follower, *other;
    swy_listing *listing;
    swy_cursor *cursor;
    swy_slice key, data, keys[2];
    swy_bytes value, values[2];
    swy_log *log;
    swy_tree *tree;
    uint64_t from, to;
    int found = 0;
    OK(swy_log_open(area, "followed log", 0, &log));
    OK(swy_tree_open(area, "followed", 0, &tree));
    OK(swy_log_append(log, TEXT("entry"), NULL));
    OK(swy_tree_put(tree, TEXT("a"), TEXT("1")));
    OK(swy_tree_put(tree, TEXT("b"), TEXT("2")));
    EXPECT(swy_follower_open("/nowhere", NULL, &follower) == SWY_MISSING && follower == NULL);
    options.flags = SWY_FOLLOWER_STEADY | SWY_FOLLOWER_UNCACHED;
    OK(swy_follower_open(path, &options, &follower));
    options.flags = 64;
    EXPECT(swy_follower_open(path, &options, &other) == SWY_INVALID);
    EXPECT(swy_follower_open_in_catalog("/nowhere", "x", NULL, &other) == SWY_UNUSABLE);
    OK(swy_follower_moment(follower, &first));
    EXPECT(first.epoch > 0 && first.record > 0);
    OK(swy_follower_get(follower, "followed", TEXT("a"), &value));
    EXPECT(is_text(&value, "1"));
    EXPECT(swy_follower_get(follower, "followed", TEXT("c"), &value) == SWY_NONE);
    EXPECT(swy_follower_get(follower, "followed log", TEXT("c"), &value) == SWY_KIND);
    EXPECT(swy_follower_get(follower, "nowhere", TEXT("c"), &value) == SWY_MISSING);
    keys[0].data = "b", keys[1].data = "c", keys[0].length = keys[1].length = 1;
    OK(swy_follower_get_many(follower, "followed", keys, 2, values));
    EXPECT(is_text(&values[0], "2") && values[1].data == NULL);
    OK(swy_follower_positions(follower, "followed log", &from, &to));
    EXPECT(from == 0 && to == 1);
    OK(swy_follower_read(follower, "followed log", 0, &value));
    EXPECT(is_text(&value, "entry"));
    EXPECT(swy_follower_read(follower, "followed", 0, &value) == SWY_KIND);
    OK(swy_follower_listing_open(follower, &listing));
    while (swy_listing_next(listing, &structure) == SWY_OK)
        found += strcmp(structure.name, "followed") == 0;
    EXPECT(found == 1);
    OK(swy_listing_close(listing));
    range.from = "b", range.from_length = 1, range.from_bound = SWY_INCLUDED;
    OK(swy_follower_cursor_open(follower, "followed", &range, &cursor));
    OK(swy_cursor_next(cursor, &key, &data));
    EXPECT(key.length == 1 && memcmp(key.data, "b", 1) == 0 && memcmp(data.data, "2", 1) == 0);
    EXPECT(swy_cursor_next(cursor, &key, &data) == SWY_NONE);
    OK(swy_cursor_close(cursor));
    EXPECT(swy_follower_cursor_open(follower, "followed log", NULL, &cursor) == SWY_KIND);
    range.flags = SWY_REVERSE;
    range.from = NULL, range.from_length = 0, range.from_bound = SWY_UNBOUNDED;
    OK(swy_follower_cursor_open(follower, "followed", &range, &cursor));
    OK(swy_cursor_next(cursor, &key, &data));
    EXPECT(key.length == 1 && memcmp(key.data, "b", 1) == 0 && memcmp(data.data, "2", 1) == 0);
    OK(swy_cursor_next(cursor, &key, &data));
    EXPECT(key.length == 1 && memcmp(key.data, "a", 1) == 0 && memcmp(data.data, "1", 1) == 0);
    EXPECT(swy_cursor_next(cursor, &key, &data) == SWY_NONE);
    OK(swy_cursor_close(cursor));
    OK(swy_tree_put(tree, TEXT("c"), TEXT("3")));
    EXPECT(swy_follower_get(follower, "followed", TEXT("c"), &value) == SWY_NONE);
    OK(swy_follower_cursor_open(follower, "followed", NULL, &cursor));
    OK(swy_follower_refresh(follower, &later));
    EXPECT(later.epoch == first.epoch && later.record > first.record);
    EXPECT(swy_cursor_next(cursor, &key, &data) == SWY_GONE);
    OK(swy_cursor_close(cursor));
    OK(swy_follower_get(follower, "followed", TEXT("c"), &value));
    EXPECT(is_text(&value, "3"));
    OK(swy_follower_close(follower));
    EXPECT(swy_follower_refresh(follower, NULL) == SWY_HANDLE);
    OK(swy_follower_close(NULL));
    OK(swy_log_close(log));
    OK(swy_tree_close(tree));
}

static void words(void)
{
    int code;
    EXPECT(strcmp(swy_code_name(SWY_FULL), "SWY_FULL") == 0 && strcmp(swy_code_name(99), "unknown") == 0);
    for (code = SWY_ENDED; code <= SWY_NONE; code++)
        EXPECT(strncmp(swy_code_name(code), "SWY_", 4) == 0 && strlen(swy_code_text(code)) > 3);
    EXPECT(strncmp(swy_code_name(SWY_ENDED - 1), "SWY_", 4) != 0 && strlen(swy_code_text(12345)) > 3);
    EXPECT(swy_version()[0] == '0' + SWY_VERSION_MAJOR);
}

int main(int argc, char **argv)
{
    swy_area *area;
    EXPECT(argc == 2);
    words();
    fill(argv[1]);
    area = open_area(argv[1], 0);
    look(area);
    order(area);
    many(area);
    together(area);
    expect(area);
    keep(area);
    lose(area);
    list(area);
    refuse(argv[1], area);
    follow(argv[1], area);
    OK(swy_area_close(area));
    return 0;
}
