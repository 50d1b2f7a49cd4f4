// Tables on the terminal.
#pragma once

#include <string>
#include <vector>

namespace weft::cli {

// Prints rows of equal length, in UTF-8, on stdout. The first column is aligned left, the others
// right. The first row is the header.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace weft::cli
