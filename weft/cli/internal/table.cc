#include "weft/cli/internal/table.h"

#include <algorithm>
#include <iostream>

#include "weft/base/text/words.h"

namespace weft::cli {

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], num_characters(row[c]));
  }
  for (const auto& row : rows) {
    std::string line = row[0] + std::string(widths[0] - num_characters(row[0]), ' ');
    for (std::size_t c = 1; c < row.size(); ++c)
      line += std::string(2 + widths[c] - num_characters(row[c]), ' ') + row[c];
    std::cout << line << '\n';
  }
}

}  // namespace weft::cli
