#if defined(__x86_64__)
#include "weft/kernels/internal/level.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weft::kernels::internal {
namespace avx2 {
#include "weft/kernels/internal/convert.inc"
#include "weft/kernels/internal/encode.inc"
#include "weft/kernels/internal/reduce.inc"
#include "weft/kernels/internal/update.inc"
}  // namespace avx2

const Level kAvx2 = {"avx2",
                     avx2::reduce,
                     avx2::cast,
                     avx2::stream_copy,
                     avx2::sum_of_squares,
                     avx2::is_within,
                     avx2::scale,
                     avx2::sgd,
                     avx2::rmsprop,
                     avx2::adagrad,
                     avx2::adam,
                     avx2::lion,
                     avx2::quantize,
                     avx2::dequantize_add,
                     avx2::multiply_right,
                     avx2::multiply_left,
                     avx2::add_low_rank};

}  // namespace weft::kernels::internal
#endif
