#include "weft/schedule/internal/cells.h"

#include <algorithm>
#include <string>

#include "weft/base/error.h"

namespace weft::schedule::internal {
namespace {

// Hash of two operands (splitmix64's finalizer). It is not symmetric, so a + b and b + a differ.
std::uint64_t mix(std::uint64_t left, std::uint64_t right) {
  std::uint64_t x = left * 0x9e3779b97f4a7c15u + (right ^ (right >> 29)) * 0xd1342543de82ef95u + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void append(Runs& runs, const Run& run) {
  if (run.begin == run.end) return;
  if (!runs.empty()) {
    Run& last = runs.back();
    const bool continues =
        last.end == run.begin && last.source + (last.end - last.begin) == run.source;
    if (continues && last.order == run.order && last.from == run.from) {
      last.end = run.end;
      return;
    }
  }
  runs.push_back(run);
}

// The part of a run within [begin, end), moved by `shift`.
Run cut(const Run& run, std::int64_t begin, std::int64_t end, std::int64_t shift) {
  Run part = run;
  part.begin = std::max(run.begin, begin);
  part.end = std::min(run.end, end);
  part.source = run.source + (part.begin - run.begin);
  part.begin += shift;
  part.end += shift;
  return part;
}

}  // namespace

Runs input_runs(int rank, std::int64_t count) {
  Run run{.begin = 0,
          .end = count,
          .source = 0,
          .order = mix(1, static_cast<std::uint64_t>(rank)),
          .from = {}};
  run.from.set(rank);
  return count == 0 ? Runs{} : Runs{run};
}

Runs combine(const Runs& left, const Runs& right) {
  Runs sum;
  for (std::size_t l = 0, r = 0; l < left.size() && r < right.size();) {
    const std::int64_t begin = std::max(left[l].begin, right[r].begin);
    const std::int64_t end = std::min(left[l].end, right[r].end);
    Run run = cut(left[l], begin, end, 0);
    const Run other = cut(right[r], begin, end, 0);
    WEFT_CHECK(run.source == other.source, "element " + std::to_string(run.source) +
                                               " is combined with element " +
                                               std::to_string(other.source));
    WEFT_CHECK(
        (run.from & other.from).none(),
        "a rank's contribution to element " + std::to_string(run.source) + " is counted twice");
    run.from |= other.from;
    run.order = mix(run.order, other.order);
    append(sum, run);
    if (left[l].end == end) ++l;
    if (right[r].end == end) ++r;
  }
  return sum;
}

Runs Cells::read(std::int64_t begin, std::int64_t count) const {
  Runs result;
  std::int64_t complete = begin;
  const auto first = std::partition_point(runs_.begin(), runs_.end(),
                                          [&](const Run& run) { return run.end <= begin; });
  for (auto run = first; run != runs_.end() && run->begin < begin + count && run->begin <= complete;
       ++run) {
    append(result, cut(*run, begin, begin + count, -begin));
    complete = run->end;
  }
  WEFT_CHECK(complete >= begin + count,
             "element " + std::to_string(complete) + " is read before it is written");
  return result;
}

void Cells::write(std::int64_t begin, const Runs& runs) {
  if (runs.empty()) return;
  const std::int64_t end = begin + runs.back().end;
  const auto first = std::partition_point(runs_.begin(), runs_.end(),
                                          [&](const Run& run) { return run.end < begin; });
  const auto last =
      std::partition_point(first, runs_.end(), [&](const Run& run) { return run.begin <= end; });
  Runs fresh;  // replaces [first, last): the new runs, and the rest of the old ones at both ends
  if (first != last && first->begin < begin) append(fresh, cut(*first, first->begin, begin, 0));
  for (const Run& run : runs) append(fresh, cut(run, run.begin, run.end, begin));
  if (first != last && std::prev(last)->end > end)
    append(fresh, cut(*std::prev(last), end, std::prev(last)->end, 0));
  const auto at = runs_.erase(first, last);
  runs_.insert(at, fresh.begin(), fresh.end());
}

}  // namespace weft::schedule::internal
