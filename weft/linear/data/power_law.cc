#include "weft/linear/data/power_law.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/file.h"
#include "weft/base/random.h"

namespace weft::linear {
namespace {

enum Stream : std::uint32_t { kRows = 1, kHidden = 2 };
constexpr double kOffset = 10;

// A normal value by Box and Muller.
double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * std::numbers::pi * random.uniform());
}

class Generator {
 public:
  explicit Generator(const PowerLaw& law)
      : law_(law),
        ratio_(std::log((law.columns + kOffset) / kOffset)),
        column_(permutation(law.columns, law.seed, 0)) {
    for (std::uint32_t place = 0; place < law.columns; ++place) {
      Random random(law.seed, kHidden, place);
      hidden_.push_back(normal(random));
      // Rare columns weigh more, as with the inverse document frequency of texts.
      const double share = std::log1p(1 / (place + kOffset)) / ratio_;
      const double expected = static_cast<double>(law.row_entries) * share;
      rarity_.push_back(0.05 - std::log1p(-std::exp(-expected)));
    }
  }

  void add(std::uint64_t number, SparseRows& rows) {
    Random random(law_.seed, kRows, number);
    choose_places(random);
    row_.clear();
    double squares = 0, margin = 0;
    for (const std::uint32_t place : places_) {
      const double value = rarity_[place] * (1 - 0.5 * std::log(1 - random.uniform()));
      squares += value * value;
      margin += value * hidden_[place];
      row_.push_back({static_cast<std::uint32_t>(column_[place]), static_cast<float>(value)});
    }
    const double length = std::sqrt(squares);
    for (Entry& entry : row_) entry.value /= static_cast<float>(length);
    std::sort(row_.begin(), row_.end(),
              [](const Entry& a, const Entry& b) { return a.column < b.column; });
    const double chance = 1 / (1 + std::exp(-law_.margin * margin / length));
    rows.add(random.uniform() < chance ? 1 : -1, row_);
  }

 private:
  // Draws places by the inverse of the power law's distribution until enough are different.
  void choose_places(Random& random) {
    places_.clear();
    while (places_.size() < law_.row_entries) {
      const double place = kOffset * (std::exp(ratio_ * random.uniform()) - 1);
      const auto drawn = std::min(static_cast<std::uint32_t>(place), law_.columns - 1);
      if (std::find(places_.begin(), places_.end(), drawn) == places_.end())
        places_.push_back(drawn);
    }
  }

  PowerLaw law_;
  double ratio_;
  std::vector<std::int64_t> column_;  // Column of each place.
  std::vector<double> hidden_, rarity_;
  std::vector<std::uint32_t> places_;
  std::vector<Entry> row_;
};

void append(std::string& text, std::floating_point auto value) {
  char digits[32];
  text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace

SparseRows generate(const PowerLaw& law, std::uint64_t begin, std::uint64_t end) {
  constexpr std::uint32_t kPart = 5;
  WEFT_REQUIRE(begin <= end && end <= law.rows, "rows outside the generated data");
  WEFT_REQUIRE(law.row_entries <= law.columns / kPart,
               "row_entries must be at most a fifth of the columns");
  SparseRows rows;
  rows.entries.reserve((end - begin) * law.row_entries);
  Generator generator(law);
  for (std::uint64_t number = begin; number < end; ++number) generator.add(number, rows);
  return rows;
}

void write_libsvm(const SparseRows& rows, const std::string& path) {
  std::string text;
  text.reserve(rows.entries.size() * 12);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    append(text, rows.labels[i]);
    for (const Entry& entry : rows.row(i)) {
      if (entry.column == kBiasColumn) continue;
      text += ' ' + std::to_string(entry.column + 1) + ':';
      append(text, entry.value);
    }
    text += '\n';
  }
  write_file_atomic(path, text);
}

}  // namespace weft::linear
