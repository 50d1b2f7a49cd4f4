// Reads CSV files: a header line, fields with commas between, quotes around fields with commas.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace weft::plan::tables {

struct CsvTable {
  std::string name;  // File name without ".csv".
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};

// Throws Error(kCorrupt), naming the line, for a row of another length than the header, an open
// quote or more than a million fields.
CsvTable parse_csv(std::string_view text, const std::string& name);

// One row by the names of its columns.
class CsvRow {
 public:
  CsvRow(const CsvTable& table, std::size_t row) : table_(&table), row_(row) {}

  // Empty if there is no such column.
  const std::string& text(std::string_view column) const;
  bool has(std::string_view column) const { return !text(column).empty(); }
  // Throws Error(kCorrupt), naming table, row and column, if the field is no number.
  double number(std::string_view column) const;
  int whole(std::string_view column) const { return static_cast<int>(number(column)); }
  std::size_t index() const { return row_; }

 private:
  const CsvTable* table_;
  std::size_t row_;
};

}  // namespace weft::plan::tables
