/* Switchyard's storage areas: a log, a queue and a map that are durable when a call returns.
 *
 * Every call may be made from any thread. Handles are closed once each; an area stays open as long as a structure of it
 * is. Bytes that a call hands out are the caller's, until swy_free. After a negative result swy_error says why, in words,
 * for the calling thread.
 */
#ifndef SWITCHYARD_STORE_H
#define SWITCHYARD_STORE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SWY_OK = 0,
    SWY_NONE = 1,      /* there is no such entry */
    SWY_INVALID = -1,  /* an argument: a null pointer, a name that is not UTF-8, a key or value that is too long */
    SWY_FULL = -2,     /* the area, or its index, has no room */
    SWY_FAILED = -3,   /* a write failed; the area is closed to writers until it is opened anew */
    SWY_DAMAGED = -4,  /* a checksum does not match */
    SWY_UNUSABLE = -5, /* the file cannot be opened, or read */
};

typedef struct swy_area swy_area;
typedef struct swy_log swy_log;
typedef struct swy_queue swy_queue;
typedef struct swy_map swy_map;

/* The area in a file or block device. A missing file becomes one of create_bytes, unless that is 0. */
int swy_area_open(const char *path, uint64_t create_bytes, swy_area **area);
/* The area that `switchyard areas serve` calls name; socket is where it listens, NULL for the usual place. An area that it does
 * not have becomes one of create_bytes, unless that is 0. */
int swy_area_open_in_catalog(const char *socket, const char *name, uint64_t create_bytes, swy_area **area);
/* Makes everything durable that lazy structures were told, by anybody. */
int swy_area_sync(const swy_area *area);
void swy_area_close(swy_area *area);

/* Why this thread's last call failed; valid until its next call. */
const char *swy_error(void);
void swy_free(uint8_t *data, size_t length);

int swy_log_open(const swy_area *area, const char *name, swy_log **log);
int swy_log_append(const swy_log *log, const uint8_t *data, size_t length, uint64_t *position);
int swy_log_read(const swy_log *log, uint64_t position, uint8_t **data, size_t *length);
/* Forgets the positions below floor. */
int swy_log_trim(const swy_log *log, uint64_t floor);
/* The first position, and the one that comes next. */
int swy_log_positions(const swy_log *log, uint64_t *first, uint64_t *next);
void swy_log_close(swy_log *log);

int swy_queue_open(const swy_area *area, const char *name, swy_queue **queue);
int swy_queue_push(const swy_queue *queue, const uint8_t *data, size_t length, uint64_t *position);
/* The next entry. It comes again after a crash, or swy_queue_give_up, until it is acknowledged. */
int swy_queue_pop(const swy_queue *queue, uint64_t *position, uint8_t **data, size_t *length);
int swy_queue_acknowledge(const swy_queue *queue, uint64_t position);
int swy_queue_give_up(const swy_queue *queue, uint64_t position);
int swy_queue_length(const swy_queue *queue, uint64_t *entries);
void swy_queue_close(swy_queue *queue);

int swy_map_open(const swy_area *area, const char *name, swy_map **map);
int swy_map_put(const swy_map *map, const uint8_t *key, size_t key_length, const uint8_t *data, size_t length);
int swy_map_get(const swy_map *map, const uint8_t *key, size_t key_length, uint8_t **data, size_t *length);
int swy_map_remove(const swy_map *map, const uint8_t *key, size_t key_length);
int swy_map_length(const swy_map *map, uint64_t *entries);
void swy_map_close(swy_map *map);

#ifdef __cplusplus
}
#endif
#endif
