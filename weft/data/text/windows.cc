#include "weft/data/text/windows.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft::data::text {
namespace {

constexpr std::uint32_t kShiftStream = 0x7465;  // Random stream (base/random.h) of the shifts.

}  // namespace

Windows::Windows(TokenFile file, WindowOptions options)
    : file_(std::move(file)), options_(options) {
  Range& range = options_.range;
  if (range.size() == 0) range = {0, file_.size()};
  const std::int64_t length = options_.length;
  const bool shifted = options_.start == WindowOptions::Start::kShifted;
  WEFT_REQUIRE(length >= 1 && length <= (std::int64_t{1} << 30),
               "Windows: a length of " + std::to_string(length));
  WEFT_REQUIRE(range.begin >= 0 && range.begin <= range.end && range.end <= file_.size(),
               file_.path() + ": tokens " + std::to_string(range.begin) + " to " +
                   std::to_string(range.end) + " of " + std::to_string(file_.size()));
  const std::int64_t least = shifted ? 2 * length : 2;
  WEFT_REQUIRE(range.size() >= least, file_.path() + ": " + std::to_string(range.size()) +
                                          " tokens are too few for windows of " +
                                          std::to_string(length) + "; " + std::to_string(least) +
                                          " are needed");
  // The last input of a row needs one more token as its target. Shifted rows are never padded, for
  // any shift.
  size_ = shifted ? (range.size() - length) / length : (range.size() - 2) / length + 1;
}

void Windows::read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const {
  WEFT_REQUIRE(row >= 0 && row < size_,
               "Windows: row " + std::to_string(row) + " of " + std::to_string(size_));
  const std::int64_t length = options_.length;
  std::int64_t begin = options_.range.begin + row * length;
  if (options_.start == WindowOptions::Start::kShifted) {
    begin += static_cast<std::int64_t>(
        Random(options_.seed, kShiftStream, static_cast<std::uint64_t>(epoch))
            .below(static_cast<std::uint64_t>(length)));
  }
  const auto count = static_cast<std::size_t>(std::min(length, options_.range.end - 1 - begin));
  file_.read(begin, out.inputs.first(count));
  file_.read(begin + 1, out.targets.first(count));
  std::fill(out.inputs.begin() + static_cast<std::ptrdiff_t>(count), out.inputs.end(), 0);
  std::fill(out.targets.begin() + static_cast<std::ptrdiff_t>(count), out.targets.end(), kNoTarget);
  std::fill(out.positions.begin(), out.positions.end(), 0);
  std::iota(out.positions.begin(), out.positions.begin() + static_cast<std::ptrdiff_t>(count), 0);
  std::fill(out.documents.begin(), out.documents.end(), -1);
  std::fill_n(out.documents.begin(), count, 0);
}

}  // namespace weft::data::text
