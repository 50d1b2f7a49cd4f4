// Normalization Form C (Unicode Standard Annex 15): canonical decomposition, marks in canonical order, composition. "e" and a combining
// acute become "é".
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace weft::data::text::internal {

// Bytes that are not UTF-8 stay as they are. Text below U+0300 is only looked through.
std::string nfc(std::string_view text);

// The tables (nfc_tables.cc), by code.
struct NfcPair {
  std::uint32_t code;
  std::uint32_t first;   // kNfcOneWay set: these two are not composed to it
  std::uint32_t second;  // 0: one character only
};
struct NfcClass {
  std::uint32_t begin;
  std::uint32_t end;  // inclusive
  std::uint32_t combining;
};
inline constexpr std::uint32_t kNfcOneWay = 0x200000;
extern const NfcPair kNfcPairs[];
extern const std::size_t kNfcPairCount;
extern const NfcClass kNfcClasses[];
extern const std::size_t kNfcClassCount;

}  // namespace weft::data::text::internal
