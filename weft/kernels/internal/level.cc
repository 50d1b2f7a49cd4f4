#include "weft/kernels/internal/level.h"

#include <cstdlib>
#include <string_view>

namespace weft::kernels::internal {

const Level& choose_level(const char* limit) {
#if defined(__x86_64__)
  const std::string_view wanted = limit ? limit : "";
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (wanted == "generic" || !avx2) return kGeneric;
  if (wanted == "avx2" || !avx512) return kAvx2;
  return kAvx512;
#else
  (void)limit;
  return kGeneric;
#endif
}

const Level& level() {
  static const Level& chosen = choose_level(std::getenv("WEFT_ISA"));
  return chosen;
}

}  // namespace weft::kernels::internal
