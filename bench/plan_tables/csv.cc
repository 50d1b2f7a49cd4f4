#include "bench/plan_tables/csv.h"

#include <charconv>

#include "weft/base/error.h"

namespace weft::plan::tables {
namespace {

constexpr std::size_t kMaxFields = 1'000'000;

// Splits text into records of fields. Quotes may hold commas, line ends and doubled quotes.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  bool next(std::vector<std::string>& fields) {
    fields.clear();
    row_ = line_;
    while (at_ < text_.size() && (text_[at_] == '\n' || text_[at_] == '\r')) skip_end();
    if (at_ >= text_.size()) return false;
    row_ = line_;
    for (;;) {
      fields.push_back(field());
      if (++count_ > kMaxFields) fail("more than a million fields");
      if (at_ < text_.size() && text_[at_] == ',') {
        ++at_;
        continue;
      }
      if (at_ < text_.size()) skip_end();
      return true;
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::kCorrupt, name_ + ", line " + std::to_string(row_) + ": " + what);
  }

 private:
  void skip_end() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }

  std::string field() {
    if (at_ < text_.size() && text_[at_] == '"') return quoted();
    std::string value;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r')
      value += text_[at_++];
    return value;
  }

  std::string quoted() {
    std::string value;
    for (++at_; at_ < text_.size(); ++at_) {
      if (text_[at_] == '\n') ++line_;
      if (text_[at_] != '"') {
        value += text_[at_];
      } else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"') {
        value += text_[at_++];
      } else {
        ++at_;
        return value;
      }
    }
    fail("a quote is not closed");
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0, line_ = 1, row_ = 1, count_ = 0;
};

}  // namespace

CsvTable parse_csv(std::string_view text, const std::string& name) {
  CsvTable table{.name = name};
  Reader reader(text, name);
  if (!reader.next(table.columns)) reader.fail("the file is empty");
  for (std::vector<std::string> fields; reader.next(fields);) {
    if (fields.size() != table.columns.size()) {
      reader.fail("a row of " + std::to_string(fields.size()) + " fields, but the header has " +
                  std::to_string(table.columns.size()));
    }
    table.rows.push_back(fields);
  }
  return table;
}

const std::string& CsvRow::text(std::string_view column) const {
  static const std::string kNone;
  for (std::size_t c = 0; c < table_->columns.size(); ++c)
    if (table_->columns[c] == column) return table_->rows[row_][c];
  return kNone;
}

double CsvRow::number(std::string_view column) const {
  const std::string& value = text(column);
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || value.empty() || end != value.data() + value.size()) {
    throw Error(Errc::kCorrupt, table_->name + ", row " + std::to_string(row_ + 1) + ": " +
                                    std::string(column) + " is \"" + value.substr(0, 40) +
                                    "\", not a number");
  }
  return number;
}

}  // namespace weft::plan::tables
