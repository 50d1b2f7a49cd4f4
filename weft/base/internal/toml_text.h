// A look at TOML text before the parser's.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace weft::internal {

// Where the first byte above ASCII stands that is in no string and no comment (TOML 1.0 has no
// place for it); none if there is no such byte up to the text's first mistake. A byte order mark at
// the very start is in order.
std::optional<std::size_t> find_unquoted(std::string_view toml);

// Where a dotted key gets more than `most` parts; none if there is no such key up to the text's
// first mistake.
std::optional<std::size_t> find_long_key(std::string_view toml, std::size_t most);

}  // namespace weft::internal
