/* What the tests in C have in common. They are C and C++ at once. */
#ifndef CHECK_H
#define CHECK_H

#include "switchyard_store.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                                      \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, swy_error());                   \
            exit(1);                                                                                           \
        }                                                                                                      \
    } while (0)

#define OK(call) EXPECT((call) == SWY_OK)
#define TEXT(text) (text), strlen(text)

/* The bytes are a text, and are freed. */
static inline int is_text(swy_bytes *bytes, const char *text)
{
    int same = bytes->data != NULL && bytes->length == strlen(text) && memcmp(bytes->data, text, bytes->length) == 0;
    swy_bytes_free(bytes);
    return same && bytes->data == NULL;
}

static inline int holds(swy_slice slice, const char *text)
{
    return slice.length == strlen(text) && memcmp(slice.data, text, slice.length) == 0;
}

static inline swy_area *open_area(const char *path, uint64_t create_bytes)
{
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    swy_area *area;
    options.create_bytes = create_bytes;
    OK(swy_area_open(path, &options, &area));
    return area;
}

#endif
