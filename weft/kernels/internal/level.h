// A table of the kernels of each instruction set, and the choice of a table.
//
// avx2.cc and avx512.cc are compiled for instructions that this processor may lack. They must not
// emit a function that the linker could share with other files. They call only builtins and their
// own namespace, and no inline function of the standard library or of weft.
#pragma once

#include <cstdint>

#include "weft/kernels/encode.h"
#include "weft/kernels/reduce.h"
#include "weft/kernels/update.h"

namespace weft::kernels::internal {

struct ReduceJob {
  void* const* destinations;
  int num_destinations;
  const void* const* sources;
  int num_sources;
  const ReduceArgs* args;  // Already checked, with kBool replaced by kU8.
  bool stream;             // Use non-temporal stores. No destination is a source.
};

struct AdamState {
  float* mean;
  float* variance;
  float* max_variance;
};
struct RmsPropState {
  float* square_average;
  float* momentum;
  float* gradient_average;
};

struct Level {
  const char* name;
  void (*reduce)(const ReduceJob&);
  void (*cast)(void* destination, DType to, const void* source, DType from, std::int64_t count);
  void (*stream_copy)(void* destination, const void* source, std::int64_t bytes);
  double (*sum_of_squares)(const float* values, std::int64_t count);
  bool (*is_within)(const float* values, std::int64_t count, float limit);
  void (*scale)(float* destination, std::int64_t count, float factor);
  void (*sgd)(float* weight, const float* gradient, float* momentum, std::int64_t count,
              std::int64_t step, const Sgd&);
  void (*rmsprop)(float* weight, const float* gradient, const RmsPropState&, std::int64_t count,
                  const RmsProp&);
  void (*adagrad)(float* weight, const float* gradient, float* sum, std::int64_t count,
                  std::int64_t step, const Adagrad&);
  void (*adam)(float* weight, const float* gradient, const AdamState&, std::int64_t count,
               std::int64_t step, const Adam&);
  void (*lion)(float* weight, const float* gradient, float* mean, std::int64_t count, const Lion&);
  void (*quantize)(const QuantizeArgs&);
  void (*dequantize_add)(const DequantizeArgs&, float* values);
  void (*multiply_right)(const LowRankArgs&, const float* matrix, const float* right, float* left);
  void (*multiply_left)(const LowRankArgs&, const float* matrix, const float* left, float* right);
  void (*add_low_rank)(const LowRankArgs&, const LowRank&, float* matrix);
};

extern const Level kGeneric;
extern const Level kAvx2;
extern const Level kAvx512;

// The best level that this processor supports and `limit` allows. `limit`: "generic" or "avx2";
// null or any other text sets no limit.
const Level& choose_level(const char* limit);
// choose_level() for the environment variable WEFT_ISA, which is read once.
const Level& level();

}  // namespace weft::kernels::internal
