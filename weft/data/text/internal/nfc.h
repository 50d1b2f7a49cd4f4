// Normalization Form C (Unicode Standard Annex 15), by utf8proc: canonical decomposition, marks in
// canonical order, composition. "e" and a combining acute become "é".
#pragma once

#include <string>
#include <string_view>

namespace weft::data::text::internal {

// Bytes that are not UTF-8 stay as they are. Text below U+0300 is only looked through.
std::string nfc(std::string_view text);

}  // namespace weft::data::text::internal
