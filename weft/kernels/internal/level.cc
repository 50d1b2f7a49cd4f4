#include "weft/kernels/internal/level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string_view>

#include "weft/base/text/variables.h"

namespace weft::kernels::internal {

#if defined(__x86_64__)
// __builtin_cpu_supports() of clang 16 does not know "f16c". The check for AVX2 includes that the
// operating system saves these registers.
static bool has_half_conversions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const Level& choose_level(const char* limit) {
#if defined(__x86_64__)
  const std::string_view wanted = limit ? limit : "";
  const bool avx2 = __builtin_cpu_supports("avx2") && has_half_conversions();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (wanted == "generic" || !avx2) return kGeneric;
  if (wanted == "avx2" || !avx512) return kAvx2;
  return kAvx512;
#else
  (void)limit;
  return kGeneric;
#endif
}

const Level& level() {
  static const Level& chosen = choose_level(variable_or_null("WEFT_ISA"));
  return chosen;
}

}  // namespace weft::kernels::internal
