#include "weft/store/internal/log.h"

#include <algorithm>

namespace weft::store::internal {

std::string encode(const Snapshot& snapshot) {
  ByteWriter out;
  out.put(snapshot.index);
  out.put(snapshot.term);
  put(out, snapshot.configuration);
  out.put_text(snapshot.state);
  return out.take();
}

Snapshot decode_snapshot(std::string_view bytes) {
  ByteReader in(bytes);
  Snapshot snapshot;
  snapshot.index = in.take<Index>();
  snapshot.term = in.take<Term>();
  snapshot.configuration = take_configuration(in);
  snapshot.state = in.take_text();
  in.expect_end();
  return snapshot;
}

Log::Log(Snapshot snapshot) { install(std::move(snapshot)); }

Term Log::term_at(Index index) const { return index == base_ ? base_term_ : at(index).term; }

const LogEntry& Log::at(Index index) const {
  WEFT_CHECK(has(index), "entry " + std::to_string(index) + " is not in the log");
  return entries_[index - base_ - 1];
}

std::vector<LogEntry> Log::slice(Index from, std::size_t max_bytes) const {
  std::vector<LogEntry> entries;
  std::size_t bytes = 0;
  for (Index index = from; index <= last(); ++index) {
    bytes += at(index).data.size();
    if (!entries.empty() && bytes > max_bytes) break;
    entries.push_back(at(index));
  }
  return entries;
}

const Configuration& Log::configuration_at(Index index) const {
  auto found = configurations_.rbegin();
  while (found->first > index && std::next(found) != configurations_.rend()) ++found;
  return found->second;
}

void Log::append(LogEntry entry) {
  if (entry.kind == LogEntry::Kind::kConfiguration) {
    ByteReader in(entry.data);
    configurations_.emplace_back(last() + 1, take_configuration(in));
  }
  entries_.push_back(std::move(entry));
}

void Log::truncate(Index from) {
  WEFT_CHECK(from > snapshot_->index && from > base_, "the log forgets committed entries");
  while (last() >= from) entries_.pop_back();
  while (configurations_.back().first >= from) configurations_.pop_back();
}

void Log::compact(Snapshot snapshot, Index keep) {
  const Index index = snapshot.index;
  WEFT_CHECK(index >= snapshot_->index && index <= last(), "a snapshot beyond the log");
  const Index new_base = std::max(base_, index > keep ? index - keep : 0);
  base_term_ = term_at(new_base);
  entries_.erase(entries_.begin(),
                 entries_.begin() + static_cast<std::ptrdiff_t>(new_base - base_));
  base_ = new_base;
  std::vector<std::pair<Index, Configuration>> kept{{index, snapshot.configuration}};
  for (auto& one : configurations_) {
    if (one.first > index) kept.push_back(std::move(one));
  }
  configurations_ = std::move(kept);
  snapshot_ = std::make_shared<const Snapshot>(std::move(snapshot));
}

void Log::install(Snapshot snapshot) {
  entries_.clear();
  base_ = snapshot.index;
  base_term_ = snapshot.term;
  configurations_.assign(1, {snapshot.index, snapshot.configuration});
  snapshot_ = std::make_shared<const Snapshot>(std::move(snapshot));
}

}  // namespace weft::store::internal
