/* Asks a SavedModel from C, with TensorFlow's library and without Python.

   ask_saved_model FOLDER LIBRARIES INPUT OUTPUT... < texts

   INPUT and the OUTPUTs are tensors as "name:index", which the signature in
   saved_model.pb names. Each line of the standard input is a text. Each value
   of each output is printed on a line of its own, the first row first.
   LIBRARIES, separated by ":" and perhaps none, hold the operations that the
   graph needs beyond TensorFlow's core: none for an export with --portable.

   Headers and library are in TensorFlow's wheel:

     SITE=$(python -c "import site; print(site.getsitepackages()[0])")
     gcc -fuse-ld=gold -I$SITE/tensorflow/include -Wl,-rpath,$SITE/tensorflow \
         -o ask_saved_model tests/serving/ask_saved_model.c \
         $SITE/tensorflow/libtensorflow_{cc,framework}.so.2
     ./ask_saved_model runs/served "" classify_text:0 \
         StatefulPartitionedCall:0 StatefulPartitionedCall:2 < texts.txt

   A default export needs two libraries of tensorflow-text:

     OPS=$SITE/tensorflow_text/python/ops
     LIBRARIES=$OPS/_fast_bert_normalizer.so:$OPS/_fast_wordpiece_tokenizer.so
     ./ask_saved_model runs/default "$LIBRARIES" classify_text:0 \
         StatefulPartitionedCall:0 StatefulPartitionedCall:2 < texts.txt
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

#define MOST_OUTPUTS 16

static void check(TF_Status* status, const char* doing) {
  if (TF_GetCode(status) == TF_OK) return;
  fprintf(stderr, "%s: %s\n", doing, TF_Message(status));
  exit(1);
}

static TF_Output find(TF_Graph* graph, char* name) {
  char* operation = strtok(name, ":");
  char* index = strtok(NULL, ":");
  TF_Output tensor = {TF_GraphOperationByName(graph, operation),
                      index ? atoi(index) : 0};
  if (tensor.oper) return tensor;
  fprintf(stderr, "The graph has no operation %s.\n", operation);
  exit(1);
}

/* The lines of the standard input as a tensor of strings (B,). */
static void fail(const char* why) {
  fprintf(stderr, "%s\n", why);
  exit(1);
}

static TF_Tensor* read_texts(void) {
  static char line[1 << 16];
  static TF_TString texts[1024];
  int64_t count = 0;
  for (; count < 1024 && fgets(line, sizeof line, stdin); ++count) {
    TF_StringInit(&texts[count]);
    size_t length = strcspn(line, "\n");
    if (length + 1 == sizeof line) fail("a line has 64 kB or more");
    TF_StringCopy(&texts[count], line, length);
  }
  if (getc(stdin) != EOF) fail("more than 1,024 lines");
  TF_Tensor* tensor =
      TF_AllocateTensor(TF_STRING, &count, 1, count * sizeof *texts);
  memcpy(TF_TensorData(tensor), texts, count * sizeof *texts);
  return tensor;
}

static void print_values(const TF_Tensor* tensor) {
  const void* data = TF_TensorData(tensor);
  for (int64_t i = 0; i < TF_TensorElementCount(tensor); ++i)
    if (TF_TensorType(tensor) == TF_STRING) {
      const TF_TString* text = (const TF_TString*)data + i;
      fwrite(TF_StringGetDataPointer(text), 1, TF_StringGetSize(text), stdout);
      printf("\n");
    } else {
      printf("%.9g\n", ((const float*)data)[i]);
    }
}

int main(int argc, char** argv) {
  TF_Status* status = TF_NewStatus();
  for (char* path = strtok(argv[2], ":"); path; path = strtok(NULL, ":")) {
    TF_LoadLibrary(path, status);
    check(status, path);
  }
  const char* tag = "serve";
  TF_Graph* graph = TF_NewGraph();
  TF_Session* session = TF_LoadSessionFromSavedModel(
      TF_NewSessionOptions(), NULL, argv[1], &tag, 1, graph, NULL, status);
  check(status, "loading the SavedModel");

  TF_Tensor *texts = read_texts(), *answers[MOST_OUTPUTS];
  TF_Output input = find(graph, argv[3]), outputs[MOST_OUTPUTS];
  int count = argc - 4;
  for (int i = 0; i < count; ++i) outputs[i] = find(graph, argv[4 + i]);
  TF_SessionRun(session, NULL, &input, &texts, 1, outputs, answers, count,
                NULL, 0, NULL, status);
  check(status, "asking it");
  for (int i = 0; i < count; ++i) print_values(answers[i]);
  return 0;
}
