#include "weft/observe/run/run_name.h"

#include <climits>

#include "weft/base/error.h"

namespace weft::observe {

void check_run_name(const std::string& name) {
  WEFT_REQUIRE(name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
                   name != "." && name != "..",
               "the run's name '" + name + "' must be a single folder name");
  WEFT_REQUIRE(name.size() <= NAME_MAX, "the run's name '" + name.substr(0, 40) + "…' has " +
                                            std::to_string(name.size()) + " bytes, more than the " +
                                            std::to_string(NAME_MAX) + " of a folder's name");
}

}  // namespace weft::observe
