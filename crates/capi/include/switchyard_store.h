/* Switchyard's storage areas for C: logs, queues, maps and trees that are durable when a call returns.
 *
 *     swy_area_options options = SWY_AREA_OPTIONS_INIT;
 *     swy_area *area;
 *     swy_map *map;
 *     options.create_bytes = 256 << 20;
 *     if (swy_area_open("app.area", &options, &area) || swy_map_open(area, "users", 0, &map)
 *         || swy_map_put(map, "ada", 3, "1815", 4))
 *         fprintf(stderr, "%s\n", swy_error());
 *
 * Rules of all calls
 *  - A call returns a result of enum swy_code: SWY_OK, SWY_NONE, or a negative error. After an error swy_error says why, in
 *    words, for the calling thread.
 *  - Any thread may make any call, except that a cursor has one thread at a time.
 *  - Handles are numbers, and not addresses. A call with a handle that is closed, null, or of another kind returns SWY_HANDLE.
 *    A forked child that uses a handle of its parent gets SWY_FORKED; it may close the handle, and open areas of its own.
 *    Closing a null handle does nothing. A handle of the result is null after an error.
 *  - Sizes are bytes. A length of 0 needs no address. Names end with a zero, are UTF-8, and have SWY_NAME_BYTES_MAX bytes at
 *    most. Keys have SWY_KEY_BYTES_MAX bytes at most. Keys and values may hold any bytes.
 *  - An area stays open as long as a structure, snapshot, batch, cursor or completions object of it is.
 *  - A struct that begins with `size` may grow at its end in later versions. Its INIT sets the size and zeros. A program that
 *    was compiled with another version of this header works, as a zero in a field means what was before the field.
 */
#ifndef SWITCHYARD_STORE_H
#define SWITCHYARD_STORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
#define SWY_API __attribute__((visibility("default")))
#define SWY_CHECKED __attribute__((warn_unused_result))
#else
#define SWY_API
#define SWY_CHECKED
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Versions of this header. The library's own is swy_version. Libraries with the same soname (libswitchyard_store.so.0) suit. */
#define SWY_VERSION_MAJOR 0
#define SWY_VERSION_MINOR 1
#define SWY_VERSION_PATCH 0

#define SWY_NAME_BYTES_MAX 64
#define SWY_KEY_BYTES_MAX 65535

/* Results */

enum swy_code {
    SWY_OK = 0,
    SWY_NONE = 1,        /* there is no such entry, or no more entry */
    SWY_INVALID = -1,    /* an argument: null, empty, no UTF-8, an unknown flag, a ticket that was never given out */
    SWY_FULL = -2,       /* no room: of the area, its index, the disk or a quota; or too many snapshots. Nothing was done */
    SWY_FAILED = -3,     /* a write failed: the area takes nothing more. Open it anew to see what is there */
    SWY_DAMAGED = -4,    /* a checksum does not match, or data were lost to damage */
    SWY_UNUSABLE = -5,   /* the area cannot be opened, or the medium cannot be read */
    SWY_HANDLE = -6,     /* the handle is closed, null, or of another kind */
    SWY_FORKED = -7,     /* the handle belongs to the process that this one was forked from */
    SWY_KIND = -8,       /* the name belongs to a structure of another kind */
    SWY_TOO_LARGE = -9,  /* a name, key, value or batch is too long. Nothing was done */
    SWY_MISSING = -10,   /* there is no such file, area or structure; or the structure was dropped */
    SWY_BUSY = -11,      /* another process has the area */
    SWY_DENIED = -12,    /* the system or the server of areas forbids it */
    SWY_SYSTEM = -13,    /* the system refuses memory, a thread or a descriptor */
    SWY_GONE = -14,      /* the moment that a steady follower showed is gone: refresh it */
    SWY_CONFLICT = -15,  /* a key is not as the batch expects. Nothing was done */
    SWY_ENDED = -16      /* the snapshot has ended, as the area needed the memory or space that it kept: take another one */
};

/* Why this thread's last failed call failed, in words; valid until its next failed call. Never null. */
SWY_API const char *swy_error(void);
/* "SWY_FULL", and what it means in general. Never null, for any number. */
SWY_API const char *swy_code_name(int code);
SWY_API const char *swy_code_text(int code);
/* Of the library, as "0.1.0". */
SWY_API const char *swy_version(void);

/* Handles */

typedef struct swy_area swy_area;
typedef struct swy_log swy_log;
typedef struct swy_queue swy_queue;
typedef struct swy_map swy_map;
typedef struct swy_tree swy_tree;
typedef struct swy_snapshot swy_snapshot;
typedef struct swy_batch swy_batch;
typedef struct swy_cursor swy_cursor;
typedef struct swy_listing swy_listing;
typedef struct swy_completions swy_completions;
typedef struct swy_follower swy_follower;

/* Bytes that are the caller's until swy_bytes_free. An empty value has an address, no value has none. */
typedef struct swy_bytes {
    void *data;
    size_t length;
} swy_bytes;

#define SWY_BYTES_INIT { NULL, 0 }

/* Frees the bytes and sets them to none; none may be freed again. */
SWY_API void swy_bytes_free(swy_bytes *bytes);

/* Bytes that are lent. */
typedef struct swy_slice {
    const void *data;
    size_t length;
} swy_slice;

/* Areas */

/* The file is mapped, not written: for persistent memory (DAX). */
#define SWY_AREA_MAPPED 1u
/* Nothing that was read is kept in memory, whatever cache_bytes_max is. */
#define SWY_AREA_UNCACHED 2u

typedef struct swy_area_options {
    size_t size;
    uint64_t create_bytes;         /* size of a new area; 0 makes none */
    uint64_t index_bytes_max;      /* memory that the index may take; 0 for 1 GiB */
    uint64_t cache_bytes_max;      /* memory for what was read; 0 for 32 MiB. It is taken as entries are read */
    uint32_t writes_in_flight_max; /* writes under way at once, 1 to 32; 0 for 1 */
    uint32_t flags;                /* SWY_AREA_ */
} swy_area_options;

#define SWY_AREA_OPTIONS_INIT { sizeof(swy_area_options), 0, 0, 0, 0, 0 }

/* The area in a file or block device. A missing file, or one of zeros, becomes one of create_bytes, unless that is 0. A block
 * device does not become one: swy_area_format makes it one. Null options are those of INIT. */
SWY_API int swy_area_open(const char *path, const swy_area_options *options, swy_area **area) SWY_CHECKED;
/* The area that `switchyard areas serve` calls name: NAME of this user, UID/NAME of another user, or an export. socket is where it
 * listens, null for the usual place. A missing area of this user becomes one of create_bytes, unless that is 0. */
SWY_API int swy_area_open_in_catalog(const char *socket, const char *name, const swy_area_options *options,
                                     swy_area **area) SWY_CHECKED;
/* An area of create_bytes in memory, for tests: it ends with its last handle. */
SWY_API int swy_area_open_memory(const swy_area_options *options, swy_area **area) SWY_CHECKED;
/* Makes a block device or file of zeros an area of create_bytes, or of all of it if that is 0. */
SWY_API int swy_area_format(const char *path, const swy_area_options *options) SWY_CHECKED;
/* Closes the handle in any case. The result tells if all that lazy structures were told is durable. */
SWY_API int swy_area_close(swy_area *area);

/* Makes everything durable that was handed over so far, by anybody. */
SWY_API int swy_area_sync(swy_area *area) SWY_CHECKED;
/* Lets the area have so many bytes at least, and all that its file or device has room for: the bytes that it has now. A file is
 * extended; a device, or an area of a catalog, has become so large before. Others read and write meanwhile. */
SWY_API int swy_area_grow(swy_area *area, uint64_t bytes, uint64_t *has) SWY_CHECKED;
/* The watermark: this ticket, and all smaller ones, are durable. */
SWY_API int swy_area_durable(swy_area *area, uint64_t *ticket) SWY_CHECKED;
/* Waits until a ticket is durable. */
SWY_API int swy_area_wait(swy_area *area, uint64_t ticket) SWY_CHECKED;

/* Counters since the area was opened, and its present state. */
typedef struct swy_stats {
    size_t size;
    uint64_t records;          /* records made durable */
    uint64_t record_bytes;     /* bytes of these, with padding */
    uint64_t entries;          /* changes handed over */
    uint64_t moved_bytes;      /* bytes that cleaning wrote again */
    uint64_t cleaned_segments;
    uint64_t checkpoints;
    uint64_t live_bytes;       /* bytes of live entries, and their limit */
    uint64_t live_bytes_max;
    uint64_t index_bytes;      /* memory of the index, estimated */
    uint64_t free_segments;
    uint64_t read_errors;      /* reads of the cleaner that failed */
    uint64_t damaged_at;       /* byte of the area whose damage keeps space from being reclaimed; UINT64_MAX for none */
    uint64_t batch_bytes_max;  /* bytes of a batch, with some for each change */
    uint64_t opened;           /* how often the area was opened, this time included */
    uint64_t replayed_records; /* records read at this opening */
    uint64_t is_torn;          /* 1 if a crash had cut the last write, which was not acknowledged */
    uint64_t snapshots;        /* snapshots that are kept, and the memory that they alone keep, estimated */
    uint64_t snapshot_bytes;
    uint64_t snapshots_ended;  /* those that have ended because they would have kept too much */
    uint64_t tables_damaged;   /* tables that were found damaged, and the byte of the area where the first is; 0 without one */
    uint64_t table_damaged_at;
} swy_stats;

#define SWY_STATS_INIT { sizeof(swy_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

SWY_API int swy_area_stats(swy_area *area, swy_stats *stats) SWY_CHECKED;
/* A warning about the medium, such as that its files do not survive a power cut; SWY_NONE if there is none. The text stays. */
SWY_API int swy_area_warning(swy_area *area, const char **text) SWY_CHECKED;

/* Structures */

enum swy_kind { SWY_KIND_LOG = 1, SWY_KIND_QUEUE = 2, SWY_KIND_MAP = 3, SWY_KIND_TREE = 4 };

/* Flags of swy_*_open. */
/* If the structure is made now: changes are shown at once, and durable with the next record that somebody waits for. */
#define SWY_LAZY 1u
/* A missing structure is not made: SWY_MISSING. */
#define SWY_EXISTING 2u

typedef struct swy_structure {
    size_t size;
    uint64_t entries;
    uint32_t number;
    uint32_t kind; /* enum swy_kind */
    uint32_t is_lazy;
    uint32_t name_length;
    char name[72]; /* ends with a zero */
} swy_structure;

#define SWY_STRUCTURE_INIT { sizeof(swy_structure), 0, 0, 0, 0, 0, { 0 } }

/* The structures that the area has now, in the order in which they were made. SWY_NONE after the last. */
SWY_API int swy_listing_open(swy_area *area, swy_listing **listing) SWY_CHECKED;
SWY_API int swy_listing_next(swy_listing *listing, swy_structure *structure) SWY_CHECKED;
SWY_API int swy_listing_close(swy_listing *listing);

/* Drops a structure with all that is in it, durably. Its open handles find nothing any more, and their changes are SWY_MISSING. */
SWY_API int swy_area_drop(swy_area *area, const char *name) SWY_CHECKED;

/* Changes without waiting
 *
 * A call with `_async` hands a change over and gives a ticket. The change is durable when the ticket is: ask swy_area_durable,
 * wait by swy_area_wait, or be told by a completions object. Tickets grow, and several changes may share one. A change of a
 * structure that is not lazy is shown to readers when it is durable. The call itself waits if too much is under way. */

/* Log: append, read by position, trim from the front. */
SWY_API int swy_log_open(swy_area *area, const char *name, uint32_t flags, swy_log **log) SWY_CHECKED;
/* position and ticket may be null, here and below. */
SWY_API int swy_log_append(swy_log *log, const void *data, size_t length, uint64_t *position) SWY_CHECKED;
SWY_API int swy_log_append_async(swy_log *log, const void *data, size_t length, uint64_t *position,
                                 uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_log_read(swy_log *log, uint64_t position, swy_bytes *value) SWY_CHECKED;
/* Forgets the positions below floor. A floor beyond the next position stands for that one. */
SWY_API int swy_log_trim(swy_log *log, uint64_t floor) SWY_CHECKED;
/* The first position, and the one that comes next. */
SWY_API int swy_log_positions(swy_log *log, uint64_t *first, uint64_t *next) SWY_CHECKED;
SWY_API int swy_log_length(swy_log *log, uint64_t *entries) SWY_CHECKED;
SWY_API int swy_log_close(swy_log *log);

/* Queue: an entry is handed out to one, until it is acknowledged. */
SWY_API int swy_queue_open(swy_area *area, const char *name, uint32_t flags, swy_queue **queue) SWY_CHECKED;
SWY_API int swy_queue_push(swy_queue *queue, const void *data, size_t length, uint64_t *position) SWY_CHECKED;
SWY_API int swy_queue_push_async(swy_queue *queue, const void *data, size_t length, uint64_t *position,
                                 uint64_t *ticket) SWY_CHECKED;
/* The next entry; SWY_NONE if there is none. It comes again after a crash, or swy_queue_give_up, until it is acknowledged. */
SWY_API int swy_queue_pop(swy_queue *queue, uint64_t *position, swy_bytes *value) SWY_CHECKED;
/* The entry is never handed out again. A position that no entry has yet, or any more, changes nothing. */
SWY_API int swy_queue_acknowledge(swy_queue *queue, uint64_t position) SWY_CHECKED;
SWY_API int swy_queue_acknowledge_async(swy_queue *queue, uint64_t position, uint64_t *ticket) SWY_CHECKED;
/* Gives an entry back; SWY_NONE if it is not there any more. */
SWY_API int swy_queue_give_up(swy_queue *queue, uint64_t position);
/* The entry at a position, without handing it out; SWY_NONE if it was acknowledged. */
SWY_API int swy_queue_read(swy_queue *queue, uint64_t position, swy_bytes *value) SWY_CHECKED;
/* The first position that was not acknowledged, and the one that comes next. */
SWY_API int swy_queue_positions(swy_queue *queue, uint64_t *first, uint64_t *next) SWY_CHECKED;
/* Entries that were not acknowledged. */
SWY_API int swy_queue_length(swy_queue *queue, uint64_t *entries) SWY_CHECKED;
SWY_API int swy_queue_close(swy_queue *queue);

/* Map: keys without order. */
SWY_API int swy_map_open(swy_area *area, const char *name, uint32_t flags, swy_map **map) SWY_CHECKED;
SWY_API int swy_map_put(swy_map *map, const void *key, size_t key_length, const void *data, size_t length) SWY_CHECKED;
SWY_API int swy_map_put_async(swy_map *map, const void *key, size_t key_length, const void *data, size_t length,
                              uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_map_get(swy_map *map, const void *key, size_t key_length, swy_bytes *value) SWY_CHECKED;
/* The same with the version of the value: a number of this write of the key, which no other write has. 0 is that of a missing key
 * (SWY_NONE). swy_batch_map_expect takes it. */
SWY_API int swy_map_get_versioned(swy_map *map, const void *key, size_t key_length, swy_bytes *value,
                                  uint64_t *version) SWY_CHECKED;
/* The values of count keys, in their order; a missing key has none. SWY_OK, whichever are there. What is not in memory is read
 * together. Each value is one that its key had during the call; together they are no snapshot. */
SWY_API int swy_map_get_many(swy_map *map, const swy_slice *keys, size_t count, swy_bytes *values) SWY_CHECKED;
/* A key that is not there may be removed. */
SWY_API int swy_map_remove(swy_map *map, const void *key, size_t key_length) SWY_CHECKED;
SWY_API int swy_map_remove_async(swy_map *map, const void *key, size_t key_length, uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_map_length(swy_map *map, uint64_t *entries) SWY_CHECKED;
SWY_API int swy_map_close(swy_map *map);

/* Tree: keys in the order of their bytes. */
SWY_API int swy_tree_open(swy_area *area, const char *name, uint32_t flags, swy_tree **tree) SWY_CHECKED;
SWY_API int swy_tree_put(swy_tree *tree, const void *key, size_t key_length, const void *data,
                         size_t length) SWY_CHECKED;
SWY_API int swy_tree_put_async(swy_tree *tree, const void *key, size_t key_length, const void *data, size_t length,
                               uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_tree_get(swy_tree *tree, const void *key, size_t key_length, swy_bytes *value) SWY_CHECKED;
SWY_API int swy_tree_get_versioned(swy_tree *tree, const void *key, size_t key_length, swy_bytes *value,
                                   uint64_t *version) SWY_CHECKED;
SWY_API int swy_tree_get_many(swy_tree *tree, const swy_slice *keys, size_t count, swy_bytes *values) SWY_CHECKED;
SWY_API int swy_tree_remove(swy_tree *tree, const void *key, size_t key_length) SWY_CHECKED;
SWY_API int swy_tree_remove_async(swy_tree *tree, const void *key, size_t key_length, uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_tree_length(swy_tree *tree, uint64_t *entries) SWY_CHECKED;
SWY_API int swy_tree_close(swy_tree *tree);

/* Cursors */

/* Values are not read: the cursor lends empty ones. */
#define SWY_KEYS_ONLY 1u
/* The last key of a tree's range comes first. Maps do not have it. */
#define SWY_REVERSE 2u

enum swy_bound { SWY_UNBOUNDED = 0, SWY_INCLUDED = 1, SWY_EXCLUDED = 2 };

typedef struct swy_range {
    size_t size;
    const void *from;
    size_t from_length;
    const void *to;
    size_t to_length;
    uint32_t from_bound; /* enum swy_bound */
    uint32_t to_bound;
    uint64_t flags; /* SWY_KEYS_ONLY, SWY_REVERSE */
} swy_range;

#define SWY_RANGE_INIT { sizeof(swy_range), NULL, 0, NULL, 0, 0, 0, 0 }

/* Entries of a tree in the order of their keys; a null range is all of them. A range that ends before it begins is empty. The
 * library copies the keys of the range. */
SWY_API int swy_tree_cursor_open(swy_tree *tree, const swy_range *range, swy_cursor **cursor) SWY_CHECKED;
/* Entries of a map, also in the order of their keys. Opening copies all keys and sorts them. flags may be SWY_KEYS_ONLY. */
SWY_API int swy_map_cursor_open(swy_map *map, uint32_t flags, swy_cursor **cursor) SWY_CHECKED;
/* The next entry; SWY_NONE after the last. The slices are lent until the next call for this cursor. An entry that is put or
 * removed meanwhile may come or not. After an error the next call tries again. */
SWY_API int swy_cursor_next(swy_cursor *cursor, swy_slice *key, swy_slice *value) SWY_CHECKED;
SWY_API int swy_cursor_close(swy_cursor *cursor);

/* Snapshots: all maps and trees of an area as they were at one moment, whoever writes meanwhile. To take one copies nothing.
 * Entries that are overwritten or removed later are kept for it, in memory or in tables (swy_stats). An area that needs that room
 * ends its oldest snapshot: reads of it are SWY_ENDED. Structures are those of the same area; one that was not there at that
 * moment is empty. */

/* Takes a snapshot, all of which is durable when the call returns. An area has 64 at most, further ones are SWY_FULL. */
SWY_API int swy_snapshot_open(swy_area *area, swy_snapshot **snapshot) SWY_CHECKED;
/* As swy_map_get and swy_map_get_many, of that moment. */
SWY_API int swy_snapshot_map_get(swy_snapshot *snapshot, swy_map *map, const void *key, size_t key_length,
                                 swy_bytes *value) SWY_CHECKED;
SWY_API int swy_snapshot_map_get_many(swy_snapshot *snapshot, swy_map *map, const swy_slice *keys, size_t count,
                                      swy_bytes *values) SWY_CHECKED;
SWY_API int swy_snapshot_tree_get(swy_snapshot *snapshot, swy_tree *tree, const void *key, size_t key_length,
                                  swy_bytes *value) SWY_CHECKED;
SWY_API int swy_snapshot_tree_get_many(swy_snapshot *snapshot, swy_tree *tree, const swy_slice *keys, size_t count,
                                       swy_bytes *values) SWY_CHECKED;
/* As swy_map_cursor_open and swy_tree_cursor_open. A cursor keeps the snapshot until the cursor is closed, too. */
SWY_API int swy_snapshot_map_cursor_open(swy_snapshot *snapshot, swy_map *map, uint32_t flags,
                                         swy_cursor **cursor) SWY_CHECKED;
SWY_API int swy_snapshot_tree_cursor_open(swy_snapshot *snapshot, swy_tree *tree, const swy_range *range,
                                          swy_cursor **cursor) SWY_CHECKED;
/* The first position that was there, and the one that came next. Entries of logs and queues are not kept. */
SWY_API int swy_snapshot_log_positions(swy_snapshot *snapshot, swy_log *log, uint64_t *first, uint64_t *next) SWY_CHECKED;
SWY_API int swy_snapshot_queue_positions(swy_snapshot *snapshot, swy_queue *queue, uint64_t *first,
                                         uint64_t *next) SWY_CHECKED;
/* Lets go of what it keeps. */
SWY_API int swy_snapshot_close(swy_snapshot *snapshot);

/* Batches: changes of several structures of one area that become durable together, or not at all. They are copied, and carried
 * out in their order. */
SWY_API int swy_batch_open(swy_area *area, swy_batch **batch) SWY_CHECKED;
SWY_API int swy_batch_append(swy_batch *batch, swy_log *log, const void *data, size_t length) SWY_CHECKED;
SWY_API int swy_batch_trim(swy_batch *batch, swy_log *log, uint64_t floor) SWY_CHECKED;
SWY_API int swy_batch_push(swy_batch *batch, swy_queue *queue, const void *data, size_t length) SWY_CHECKED;
SWY_API int swy_batch_acknowledge(swy_batch *batch, swy_queue *queue, uint64_t position) SWY_CHECKED;
SWY_API int swy_batch_map_put(swy_batch *batch, swy_map *map, const void *key, size_t key_length, const void *data,
                              size_t length) SWY_CHECKED;
SWY_API int swy_batch_map_remove(swy_batch *batch, swy_map *map, const void *key, size_t key_length) SWY_CHECKED;
SWY_API int swy_batch_tree_put(swy_batch *batch, swy_tree *tree, const void *key, size_t key_length, const void *data,
                               size_t length) SWY_CHECKED;
SWY_API int swy_batch_tree_remove(swy_batch *batch, swy_tree *tree, const void *key, size_t key_length) SWY_CHECKED;
/* Carries the batch out only if the value of the key has this version (swy_map_get_versioned), or if the key is missing: version
 * 0. Else commit or submit is SWY_CONFLICT, and nothing of the batch is done. The state before the batch counts. If each key that
 * a decision rests on is expected, nobody has changed any of them meanwhile. */
SWY_API int swy_batch_map_expect(swy_batch *batch, swy_map *map, const void *key, size_t key_length,
                                 uint64_t version) SWY_CHECKED;
SWY_API int swy_batch_tree_expect(swy_batch *batch, swy_tree *tree, const void *key, size_t key_length,
                                  uint64_t version) SWY_CHECKED;
/* After SWY_CONFLICT: the name of the structure, and the key that was not as expected. SWY_NONE if the last commit or submit of
 * the batch had another result. */
SWY_API int swy_batch_conflict(swy_batch *batch, swy_bytes *structure, swy_bytes *key) SWY_CHECKED;
/* How many changes it has, and how many of these are appends and pushes; either may be null. */
SWY_API int swy_batch_length(swy_batch *batch, size_t *changes, size_t *additions) SWY_CHECKED;
/* Takes all changes out, and all that it expects. */
SWY_API int swy_batch_clear(swy_batch *batch);
/* Carries the batch out, and empties it if that succeeds; after an error it is as before. positions gets those of appends and
 * pushes, in their order, and has room for capacity of them; null if nobody asks. */
SWY_API int swy_batch_commit(swy_batch *batch, uint64_t *positions, size_t capacity) SWY_CHECKED;
/* The same without waiting. A batch that expects keys waits for their writes that are under way. */
SWY_API int swy_batch_submit(swy_batch *batch, uint64_t *positions, size_t capacity, uint64_t *ticket) SWY_CHECKED;
SWY_API int swy_batch_close(swy_batch *batch);

/* Completions: a descriptor for poll(2), epoll(7) or a library's event loop. */

typedef struct swy_completion {
    uint64_t tag;    /* the caller's */
    uint64_t ticket;
    int32_t code;    /* SWY_OK if the ticket is durable, or the error */
    uint32_t reserved;
} swy_completion;

SWY_API int swy_completions_open(swy_area *area, swy_completions **completions) SWY_CHECKED;
/* An eventfd that can be read as long as there is something to collect. It belongs to the object: do not read, write or close
 * it. */
SWY_API int swy_completions_descriptor(swy_completions *completions, int *descriptor) SWY_CHECKED;
/* Asks to be told when a ticket of this area is durable, or has failed. A ticket of lazy structures is made durable, too. */
SWY_API int swy_completions_add(swy_completions *completions, uint64_t ticket, uint64_t tag) SWY_CHECKED;
/* Takes what has ended, at most capacity; count is how many. Does not wait. Those of a ticket come in the order in
 * which they were added. */
SWY_API int swy_completions_collect(swy_completions *completions, swy_completion *ended, size_t capacity,
                                    size_t *count) SWY_CHECKED;
/* Forgets what was not collected, and ends after the write under way. */
SWY_API int swy_completions_close(swy_completions *completions);

/* Followers: areas that other processes have open, read-only. Nobody is kept out. A follower shows one
 * moment, the state after a record; swy_follower_refresh goes to the newest one that is durable. Structures are named in each call.
 * A forked child opens followers of its own. */

/* All reads between two refreshes show one moment, or are SWY_GONE. Otherwise a read refreshes by itself if its moment is gone. */
#define SWY_FOLLOWER_STEADY 1u
/* The medium is not flushed before a record is shown: it may be gone after a power cut. */
#define SWY_FOLLOWER_UNFLUSHED 2u
/* Nothing that was read is kept in memory. */
#define SWY_FOLLOWER_UNCACHED 4u

typedef struct swy_follower_options {
    size_t size;
    uint64_t cache_bytes_max; /* memory for what was read; 0 for 32 MiB */
    uint32_t flags;           /* SWY_FOLLOWER_ */
    uint32_t reserved;        /* 0 */
} swy_follower_options;

#define SWY_FOLLOWER_OPTIONS_INIT { sizeof(swy_follower_options), 0, 0, 0 }

/* Later moments have larger epochs, or the same one and larger records. */
typedef struct swy_moment {
    size_t size;
    uint64_t epoch;  /* how often the area had been opened */
    uint64_t record; /* the last one */
} swy_moment;

#define SWY_MOMENT_INIT { sizeof(swy_moment), 0, 0 }

/* Null options are those of INIT. SWY_BUSY: the area changes faster than it can be read. */
SWY_API int swy_follower_open(const char *path, const swy_follower_options *options, swy_follower **follower) SWY_CHECKED;
/* The area, or export, that `switchyard areas serve` calls name; socket is where it listens, null for the usual place. */
SWY_API int swy_follower_open_in_catalog(const char *socket, const char *name, const swy_follower_options *options,
                                         swy_follower **follower) SWY_CHECKED;
/* Shows what is durable now. The moment is stored if it is not null. After an error the moment is the one before. */
SWY_API int swy_follower_refresh(swy_follower *follower, swy_moment *moment) SWY_CHECKED;
SWY_API int swy_follower_moment(swy_follower *follower, swy_moment *moment) SWY_CHECKED;
/* Of a map or tree, as swy_map_get and swy_map_get_many. All values of a call are of one moment. */
SWY_API int swy_follower_get(swy_follower *follower, const char *name, const void *key, size_t key_length,
                             swy_bytes *value) SWY_CHECKED;
SWY_API int swy_follower_get_many(swy_follower *follower, const char *name, const swy_slice *keys, size_t count,
                                  swy_bytes *values) SWY_CHECKED;
/* Of a log or queue. Nothing is popped. */
SWY_API int swy_follower_read(swy_follower *follower, const char *name, uint64_t position, swy_bytes *value) SWY_CHECKED;
SWY_API int swy_follower_positions(swy_follower *follower, const char *name, uint64_t *first, uint64_t *next) SWY_CHECKED;
/* All structures, as swy_listing_open. */
SWY_API int swy_follower_listing_open(swy_follower *follower, swy_listing **listing) SWY_CHECKED;
/* The entries of a tree in a range, or of a map; null for all of them. */
SWY_API int swy_follower_cursor_open(swy_follower *follower, const char *name, const swy_range *range,
                                     swy_cursor **cursor) SWY_CHECKED;
SWY_API int swy_follower_close(swy_follower *follower);

#ifdef __cplusplus
}
#endif
#endif
