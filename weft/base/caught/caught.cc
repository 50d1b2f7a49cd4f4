#include "weft/base/caught/caught.h"

namespace weft {

Error as_error(const std::exception& caught, Error::Context context) {
  const auto* const known = dynamic_cast<const Error*>(&caught);
  return known != nullptr ? *known : Error(code_of(caught), describe(caught), std::move(context));
}

Error as_ended(const std::exception& caught, const std::string& who) {
  const auto* const known = dynamic_cast<const Error*>(&caught);
  if (known != nullptr && known->code() != Errc::kInvalidArgument) return *known;
  return {Errc::kAborted,
          who + " ended with: " + (known != nullptr ? known->message() : describe(caught))};
}

}  // namespace weft
