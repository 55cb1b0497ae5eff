/* Keys in order: the entries of a day, by a cursor over a range of a tree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <switchyard_store.h>

static void check(int code)
{
    if (code < 0) {
        fprintf(stderr, "%s: %s\n", swy_code_name(code), swy_error());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static const char *const times[] = { "05-30T23:59", "05-31T08:00", "05-31T17:30", "06-01T00:00" };
    swy_area_options options = SWY_AREA_OPTIONS_INIT;
    swy_range day = SWY_RANGE_INIT;
    swy_area *area;
    swy_tree *tree;
    swy_cursor *cursor;
    swy_slice key, value;
    size_t i;
    int code;
    if (argc != 2)
        return 2;
    options.create_bytes = 64 << 20;
    check(swy_area_open(argv[1], &options, &area));
    check(swy_tree_open(area, "visits", 0, &tree));
    for (i = 0; i < sizeof times / sizeof times[0]; i++)
        check(swy_tree_put(tree, times[i], strlen(times[i]), "visitor", 7));

    day.from = "05-31", day.from_length = 5, day.from_bound = SWY_INCLUDED;
    day.to = "06-01", day.to_length = 5, day.to_bound = SWY_EXCLUDED;
    check(swy_tree_cursor_open(tree, &day, &cursor));
    /* Key and value are lent until the next call for the cursor. */
    while ((code = swy_cursor_next(cursor, &key, &value)) == SWY_OK)
        printf("%.*s %.*s\n", (int)key.length, (const char *)key.data, (int)value.length, (const char *)value.data);
    check(code);
    check(swy_cursor_close(cursor));

    /* The last one comes first. */
    day.flags = SWY_REVERSE;
    check(swy_tree_cursor_open(tree, &day, &cursor));
    if (swy_cursor_next(cursor, &key, &value) == SWY_OK)
        printf("last: %.*s\n", (int)key.length, (const char *)key.data);
    check(swy_cursor_close(cursor));
    check(swy_tree_close(tree));
    check(swy_area_close(area));
    return 0;
}
