// Words of text files: numbers, and words as error messages show them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::linear {

// The finite decimal number that the whole word is: an optional sign, digits, point and exponent.
// A number too small for float64 is 0. None for anything else: an empty word, "nan", "inf", a
// number too large for float64, hexadecimal digits.
std::optional<double> parse_number(std::string_view word);

// The word in quotes for a message of one line: at most 40 bytes of it, control characters and
// bytes above ASCII as \xNN.
std::string shown(std::string_view word);

}  // namespace weft::linear
