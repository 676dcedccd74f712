/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that somebody made to harm their readers: their hashes are right, what they say is
 * not. Each is refused before any of it is used, with what is wrong. */
#define _GNU_SOURCE /* mkfifo, symlink */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/checkpoint/convert.h"
#include "backend/checkpoint/load.h"
#include "backend/checkpoint/stored.h"
#include "core/file.h"
#include "core/folder.h"
#include "tests/unit/testing.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define FOLDER "hostile/step-00000007"
#define FILE_NAME "model-00001-of-00001.safetensors"
#define SAVE 0x1234u
#define DATA 64u /* bytes of the one tensor, of 16 elements */

typedef struct bytes_line {
    uint64_t offset, bytes, count, stride;
} bytes_line;

/* A checkpoint of two ranks and what is wrong with it; zeros: nothing is. */
typedef struct hostile {
    const char *name;        /* of the file in the manifest */
    const char *json;        /* ends the manifest's list of files */
    uint64_t bytes;          /* of the file in the manifest */
    const char *dtype;       /* of the tensor */
    bytes_line rank0, rank1; /* rows of the data in their buckets, from the begin of the data */
    bytes_line more;         /* a second extent of rank 1's bucket, from the begin of the file */
    uint64_t save1;          /* of rank 1's marker */
    const char *ranks1;      /* its "rank N of M" */
    const char *world;       /* in the manifest */
    const char *file1;       /* that rank 1 lists */
    unsigned schema;
    bool no_header; /* it is no bucket of its own */
} hostile;

static char header[256];
static uint64_t header_bytes;

static void write_file(const char *name, const void *data, uint64_t n) {
    char path[300];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    CHECK_OK(stw_file_write(path, data, n, err));
}

/* A text with the hash of a marker. */
static void write_marker(unsigned rank, stw_text *text) {
    char name[32];
    stw_marker_name(rank, name);
    stw_text_printf(text, "xxh3 %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text->data, text->length));
    write_file(name, text->data, text->length);
    stw_text_free(text);
}

static void put_row(stw_text *text, const bytes_line *x, uint64_t base) {
    stw_text_printf(text, "bytes %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
                    base + x->offset, x->bytes, x->count, x->stride);
}

static uint64_t hash_rows(const unsigned char *data, const bytes_line *x) {
    XXH3_state_t *state = XXH3_createState();
    XXH3_64bits_reset(state);
    for (uint64_t r = 0; r < x->count && x->offset + r * x->stride + x->bytes <= DATA; r++)
        XXH3_64bits_update(state, data + x->offset + r * x->stride, x->bytes);
    const uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}

static void put_header(stw_text *text) {
    stw_text_printf(text, "bucket 0 %016" PRIx64 "\n",
                    (uint64_t)XXH3_64bits(header, (size_t)header_bytes));
    stw_text_printf(text, "bytes 0 %" PRIu64 " 1 0\n", header_bytes);
}

static void make(const hostile *h) {
    unsigned char data[DATA];
    stw_text manifest = STW_TEXT_INIT, marker = STW_TEXT_INIT, file = STW_TEXT_INIT;
    const bytes_line low = {0, 32, 1, 0}, high = {32, 32, 1, 0};
    const bytes_line *rank0 = h->rank0.bytes > 0 ? &h->rank0 : &low,
                     *rank1 = h->rank1.bytes > 0 ? &h->rank1 : &high;
    const char *dtype = h->dtype != NULL ? h->dtype : "F32";
    const unsigned n = strcmp(dtype, "F32") == 0 ? 16 : 64;
    (void)mkdir("hostile", 0777);
    (void)!stw_folder_remove(FOLDER, NULL);
    CU_ASSERT_EQUAL(mkdir(FOLDER, 0777), 0);
    for (unsigned i = 0; i < DATA; i++) data[i] = (unsigned char)(i % 7);
    snprintf(header + 8, sizeof header - 8,
             "{\"w\":{\"dtype\":\"%s\",\"shape\":[%u],\"data_offsets\":[0,%u]}}", dtype, n, DATA);
    header_bytes = 8 + strlen(header + 8);
    for (int b = 0; b < 8; b++) header[b] = (char)((header_bytes - 8) >> 8 * b);
    stw_text_append(&file, header, (size_t)header_bytes);
    stw_text_append(&file, (const char *)data, DATA);
    write_file(FILE_NAME, file.data, file.length);

    stw_text_printf(&manifest,
                    "{\"schema\":\"stowage.checkpoint/%u\",\"save\":\"%016x\",\"step\":7,"
                    "\"world\":%s,\"model\":{\"name\":\"m\",\"tensors\":1,\"params\":16},"
                    "\"terms\":{},\"groups\":[],\"seed\":\"%016x\",\"weights_sample\":\"\","
                    "\"clip_factors\":[],\"files\":[{\"name\":\"%s\",\"bytes\":%" PRIu64 "}%s]}",
                    h->schema > 0 ? h->schema : 1, SAVE, h->world != NULL ? h->world : "2", 1,
                    h->name != NULL ? h->name : FILE_NAME, h->bytes > 0 ? h->bytes : file.length,
                    h->json != NULL ? h->json : "");
    write_file("stowage.json", manifest.data, manifest.length);

    stw_text_printf(&marker,
                    "stowage.checkpoint-rank/1\nsave %016x\nstep 7\nrank 0 of 2\nfile " FILE_NAME
                    "\nfile stowage.json\n",
                    SAVE);
    if (!h->no_header) put_header(&marker);
    stw_text_printf(&marker, "bucket 0 %016" PRIx64 "\n", hash_rows(data, rank0));
    put_row(&marker, rank0, header_bytes);
    if (h->no_header) put_row(&marker, &(bytes_line){0, header_bytes, 1, 0}, 0);
    stw_text_printf(&marker, "bucket 1 %016" PRIx64 "\nbytes 0 %zu 1 0\n",
                    (uint64_t)XXH3_64bits(manifest.data, manifest.length), manifest.length);
    write_marker(0, &marker);

    stw_text_printf(&marker, "stowage.checkpoint-rank/1\nsave %016" PRIx64 "\nstep 7\nrank %s\n",
                    h->save1 > 0 ? h->save1 : SAVE, h->ranks1 != NULL ? h->ranks1 : "1 of 2");
    stw_text_printf(&marker, "file %s\nbucket 0 %016" PRIx64 "\n",
                    h->file1 != NULL ? h->file1 : FILE_NAME, hash_rows(data, rank1));
    put_row(&marker, rank1, header_bytes);
    if (h->more.bytes > 0) put_row(&marker, &h->more, 0);
    write_marker(1, &marker);
    stw_text_free(&manifest);
    stw_text_free(&file);
}

static stw_status open_it(const hostile *h, stw_error *err) {
    stw_checkpoint *c = NULL;
    make(h);
    const stw_status status = stw_checkpoint_open(FOLDER, &c, err);
    stw_checkpoint_close(c);
    return status;
}

#define REFUSED(status, word, ...)                                                                 \
    CHECK_FAILS(open_it(&(const hostile){__VA_ARGS__}, err), STW_STATUS_##status, word)

/* ---- tests ---- */

static void opens(const hostile *h) {
    stw_checkpoint *c = NULL;
    stw_checkpoint_damage damage = {0};
    make(h);
    CHECK_OK(stw_checkpoint_open(FOLDER, &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CHECK_OK(stw_checkpoint_verify(c, NULL, NULL, &damage, err));
    CU_ASSERT_EQUAL(damage.damaged, 0);
    stw_checkpoint_close(c);
}

static void what_is_right_opens(void) {
    opens(&(const hostile){0});
    /* rows of two ranks that alternate */
    opens(&(const hostile){.rank0 = {0, 8, 4, 16}, .rank1 = {8, 8, 4, 16}});
    opens(&(const hostile){.rank0 = {4, 4, 8, 8}, .rank1 = {0, 4, 8, 8}});
}

static void names_stay_in_the_folder(void) {
    char longer[10001];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    static const char *const names[] = {"../x", "/etc/passwd", ".x", "", "a/../../x", ".."};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i][0] != '\0')
            REFUSED(DISAGREE, "the name of a file of the folder", .name = names[i]);
        if (names[i][0] != '\0')
            REFUSED(DISAGREE, "the name of a file of the folder", .file1 = names[i]);
    }
    REFUSED(DISAGREE, "the name of a file of the folder", .name = longer);
    REFUSED(DISAGREE, "expected a line of stowage.checkpoint-rank/1", .file1 = longer);
    longer[300] = '\0';
    REFUSED(DISAGREE, "the name of a file of the folder", .name = longer);
    REFUSED(DISAGREE, "the name of a file of the folder", .file1 = longer);
    REFUSED(DISAGREE, "stowage.json", .name = "a\\u0000b");
    REFUSED(DISAGREE, "the name of a file of the folder", .json = ",{\"name\":\"\",\"bytes\":0}");
    REFUSED(DISAGREE, "is missing", .name = "model-\\n.safetensors");
}

static void every_byte_has_one_bucket(void) {
    REFUSED(DISAGREE, "expected the next ones at", .rank1 = {28, 32, 1, 0});
    REFUSED(DISAGREE, "expected the next ones at", .rank1 = {36, 28, 1, 0});
    REFUSED(DISAGREE, "the markers list", .rank1 = {32, 28, 1, 0});
    REFUSED(DISAGREE, "expected the next ones at", .rank1 = {0, 32, 1, 0});
    REFUSED(DISAGREE, "expected the next ones at", .rank0 = {0, 8, 4, 16}, .rank1 = {8, 8, 4, 12});
    REFUSED(DISAGREE, "expected the next ones at", .rank0 = {0, 8, 4, 16}, .rank1 = {0, 8, 4, 16});
    REFUSED(DISAGREE, "which is no file of the checkpoint", .file1 = "other.safetensors");
    REFUSED(DISAGREE, "lists the file " FILE_NAME " twice",
            .json = ",{\"name\":\"" FILE_NAME "\",\"bytes\":128}");
}

static void sizes_near_2_63(void) {
    const uint64_t huge = INT64_MAX;
    REFUSED(DISAGREE, "found 128 bytes, expected 9223372036854775807", .bytes = huge);
    REFUSED(DISAGREE, "stowage.json", .json = ",{\"name\":\"b\",\"bytes\":9223372036854775808}");
    REFUSED(DISAGREE, "stowage.json", .json = ",{\"name\":\"b\",\"bytes\":-1}");
    REFUSED(DISAGREE, "expected the next ones at", .rank1 = {32, huge, 1, 0});
    REFUSED(DISAGREE, "expected the next ones at", .more = {huge, huge, 1, 0});
    REFUSED(DISAGREE, "expected rows that are apart", .more = {huge, 1, huge, 3});
    REFUSED(DISAGREE, "expected rows that are apart", .more = {UINT64_MAX, 1, 1, 0});
    REFUSED(DISAGREE, "more than 4294967296 rows", .more = {0, 1, 1ull << 62, 1});
    /* their sum is 0 modulo 2^64 */
    REFUSED(DISAGREE, "expected rows that are apart", .rank1 = {32, 1ull << 63, 1, 0},
            .more = {0, 1ull << 63, 2, 0});
    REFUSED(DISAGREE, "expected", .rank1 = {32, 1ull << 62, 1, 0}, .more = {0, 3ull << 62, 1, 0});
}

static void markers_of_others(void) {
    /* of another version: nobody goes on from an older checkpoint instead */
    REFUSED(DISAGREE, "stowage.checkpoint/2", .schema = 2);
    REFUSED(DISAGREE, "save 0000000000004321; expected rank 1 of 2", .save1 = 0x4321);
    REFUSED(DISAGREE, "found rank 0 of 2", .ranks1 = "0 of 2");
    REFUSED(DISAGREE, "found rank 1 of 3", .ranks1 = "1 of 3");
    REFUSED(DISAGREE, "number of ranks", .ranks1 = "4294967294 of 4294967295");
    REFUSED(DISAGREE, "number of ranks", .ranks1 = "2 of 2");
    REFUSED(DISAGREE, "a number below 2^32", .world = "4294967298");
    REFUSED(DISAGREE, "of 3", .world = "3");
}

static stw_status replaced(int (*by)(const char *path), stw_error *err) {
    stw_checkpoint *c = NULL;
    make(&(const hostile){0});
    (void)unlink(FOLDER "/" FILE_NAME);
    CU_ASSERT_EQUAL(by(FOLDER "/" FILE_NAME), 0);
    const stw_status status = stw_checkpoint_open(FOLDER, &c, err);
    stw_checkpoint_close(c);
    (void)rmdir(FOLDER "/" FILE_NAME);
    return status;
}

static int by_folder(const char *path) { return mkdir(path, 0777); }
static int by_fifo(const char *path) { return mkfifo(path, 0666); }
static int by_loop(const char *path) { return symlink(FILE_NAME, path); }
static int by_device(const char *path) { return symlink("/dev/zero", path); }
static int by_link(const char *path) { return symlink("stowage.json", path); }

static void no_files(void) {
    CHECK_FAILS(replaced(by_folder, err), STW_STATUS_DISAGREE, "is no file of bytes");
    CHECK_FAILS(replaced(by_fifo, err), STW_STATUS_DISAGREE, "is no file of bytes");
    CHECK_FAILS(replaced(by_device, err), STW_STATUS_DISAGREE, "is no file of bytes");
    CHECK_FAILS(replaced(by_loop, err), STW_STATUS_DISAGREE, "is missing or cannot be read");
    CHECK_FAILS(replaced(by_link, err), STW_STATUS_DISAGREE, "expected 128");
}

/* What opens may still not be what its reader expects. */
static void elements(void) {
    stw_tensor tensor = {.name = "w", .rank = 1, .shape = {64}, .numel = 64, .experts = 1};
    const stw_model model = {.name = "m", .model_type = "", .n_tensors = 1, .tensors = &tensor};
    const stw_convert_options options = {.folder = "hostile/out"};
    stw_convert_result result;
    stw_checkpoint *c = NULL;
    stw_saved_files *saved = NULL;
    make(&(const hostile){.dtype = "F8_E4M3"});
    CHECK_OK(stw_checkpoint_open(FOLDER, &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CHECK_FAILS(stw_checkpoint_stored(c, &model, NULL, &saved, err), STW_STATUS_BAD_INPUT,
                "found dtype F8_E4M3, expected F32, BF16 or F16");
    CHECK_FAILS(stw_convert(c, &options, &result, err), STW_STATUS_BAD_INPUT,
                "found dtype F8_E4M3, expected F32, BF16 or F16");
    stw_checkpoint_close(c);

    make(&(const hostile){.rank0 = {0, 30, 1, 0}, .rank1 = {30, 34, 1, 0}});
    CHECK_OK(stw_checkpoint_open(FOLDER, &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CHECK_FAILS(stw_convert(c, &options, &result, err), STW_STATUS_BAD_INPUT,
                "a bucket cuts an element of w");
    stw_checkpoint_close(c);

    make(&(const hostile){.no_header = true});
    CHECK_OK(stw_checkpoint_open(FOLDER, &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CHECK_FAILS(stw_convert(c, &options, &result, err), STW_STATUS_BAD_INPUT,
                "found no header in what rank 0's marker lists");
    stw_checkpoint_close(c);
    CU_ASSERT_FALSE(stw_file_exists("hostile/out"));
    CU_ASSERT_FALSE(stw_file_exists("hostile/.out.converting"));
}

/* Removing and tidying go through no link, and leave what is of others. */
static void links_and_foreign_folders(void) {
    stw_error why = STW_ERROR_INIT;
    (void)mkdir("precious", 0777);
    CHECK_OK(stw_file_write("precious/file", "x", 1, err));
    static const char *const names[] = {"step-00000009", ".step-00000009.0123456789abcdef.partial",
                                        ".step-00000009.1.removing"};
    for (size_t i = 0; i < 3; i++) {
        char path[100];
        struct stat info;
        snprintf(path, sizeof path, "hostile/%s", names[i]);
        (void)unlink(path);
        CU_ASSERT_EQUAL(symlink("../precious", path), 0);
        if (i == 0) CHECK_OK(stw_checkpoint_remove(path, err));
        if (i > 0) stw_checkpoint_tidy("hostile", 1);
        CU_ASSERT_TRUE(lstat(path, &info) != 0);
        CU_ASSERT_TRUE(stw_file_exists("precious/file"));
    }
    CU_ASSERT_FALSE(stw_checkpoint_is_own("precious"));
    make(&(const hostile){0});
    CU_ASSERT_TRUE(stw_checkpoint_is_own(FOLDER));

    /* a save whose name is that of something else */
    stw_partial p = {.folder = "hostile", .step = 12, .save = 5, .world = 1};
    bool published = true;
    char marker[300];
    (void)mkdir("hostile/step-00000012", 0777);
    CHECK_OK(stw_file_write("hostile/step-00000012/theirs", "x", 1, err));
    CHECK_OK(stw_partial_make(&p, err));
    snprintf(marker, sizeof marker, "%.200s/rank-00000.done", p.path);
    CHECK_OK(stw_file_write(marker, "x", 1, err));
    CU_ASSERT_EQUAL(stw_partial_publish(&p, 0, &published, &why), STW_STATUS_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(why.text, "found something else than a checkpoint"));
    CU_ASSERT_FALSE(published);
    CU_ASSERT_TRUE(stw_file_exists("hostile/step-00000012/theirs"));
    CHECK_OK(stw_folder_remove("hostile/step-00000012", err));
    CHECK_OK(stw_folder_remove(p.path, err));
}

/* Two folders of one step are a choice that does not change. */
static void one_step_twice(void) {
    stw_checkpoint *c = NULL;
    make(&(const hostile){0});
    (void)!stw_folder_remove("hostile/step-7", NULL);
    CU_ASSERT_EQUAL(rename(FOLDER, "hostile/step-7"), 0);
    make(&(const hostile){0});
    CHECK_OK(stw_checkpoint_newest("hostile", &c, err));
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    CU_ASSERT_STRING_EQUAL(c->path, "hostile/step-7");
    stw_checkpoint_close(c);
    CHECK_OK(stw_folder_remove("hostile/step-7", err));
    CHECK_OK(stw_folder_remove(FOLDER, err));
    CHECK_FAILS(stw_checkpoint_newest("hostile", &c, err), STW_STATUS_BAD_INPUT,
                "found no checkpoint");
    CHECK_FAILS(stw_checkpoint_newest("precious/file", &c, err), STW_STATUS_IO, "Not a directory");
}

STW_TEST_MAIN("backend checkpoint hostile", {"what is right opens", what_is_right_opens},
              {"names stay in the folder", names_stay_in_the_folder},
              {"every byte has one bucket", every_byte_has_one_bucket},
              {"sizes near 2^63", sizes_near_2_63}, {"markers of others", markers_of_others},
              {"folders, FIFOs and links", no_files}, {"elements", elements},
              {"links and foreign folders", links_and_foreign_folders},
              {"one step twice", one_step_twice})
