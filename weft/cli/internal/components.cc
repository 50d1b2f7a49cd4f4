#include "weft/cli/internal/components.h"

namespace weft::cli {

bool is_off(std::string_view option) {
  return std::string_view(WEFT_OFF).find(option) != std::string_view::npos;
}

Error absent(const std::string& what, const std::string& component, std::string_view option) {
  return Error(Errc::kInvalidArgument, what + " needs " + component +
                                           ", which this weft was built without; build it with -D" +
                                           std::string(option) + "=ON");
}

void check_servers(int servers) {
  if (servers > 0 && is_off("WEFT_PS"))
    throw absent("--servers", "the parameter server", "WEFT_PS");
}

}  // namespace weft::cli
