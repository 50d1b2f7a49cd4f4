// Tables on the terminal.
#pragma once

#include <string>
#include <vector>

namespace weft::cli {

// Prints rows of equal length on stdout, the first column to the left and the others to the right.
// The first row is the head.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace weft::cli
