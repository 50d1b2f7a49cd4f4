// nfc(): Normalization Form C (Unicode Standard Annex 15), by utf8proc. It decomposes characters,
// orders marks canonically and composes again. "e" and a combining acute become "é".
#pragma once

#include <string>
#include <string_view>

namespace weft::data::text::internal {

// Bytes that are not UTF-8 stay as they are. Text without characters from U+0300 on is copied.
std::string nfc(std::string_view text);

}  // namespace weft::data::text::internal
