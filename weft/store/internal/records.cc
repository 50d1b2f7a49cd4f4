#include "weft/store/internal/records.h"

namespace weft::store::internal {
namespace {

enum class Record : std::uint8_t { kIdentity, kVote, kSnapshot, kEntries };

void replay_entries(ByteReader& in, Log& log) {
  constexpr std::size_t kEntryBytes = 13;
  const auto from = in.take<Index>();
  if (from > log.last() + 1 || from <= log.base()) ByteReader::fail();
  log.truncate(from);
  for (auto left = in.take_count(kEntryBytes); left > 0; --left) log.append(take_entry(in));
}

}  // namespace

std::string identity_record(const Identity& identity) {
  ByteWriter out;
  out.put(Record::kIdentity);
  out.put(identity.cluster);
  out.put(identity.me);
  out.put(identity.incarnation);
  out.put(identity.added);
  return out.take();
}

std::string vote_record(const Vote& vote) {
  ByteWriter out;
  out.put(Record::kVote);
  out.put(vote.term);
  out.put(vote.candidate);
  return out.take();
}

std::string snapshot_record(const Snapshot& snapshot) {
  ByteWriter out;
  out.put(Record::kSnapshot);
  out.put_text(encode(snapshot));
  return out.take();
}

std::string entries_record(const Log& log, Index from) {
  ByteWriter out;
  out.put(Record::kEntries);
  out.put(from);
  out.put(static_cast<std::uint32_t>(log.last() + 1 - from));
  for (Index index = from; index <= log.last(); ++index) put(out, log.at(index));
  return out.take();
}

std::vector<std::string> all_records(const Identity& identity, const Vote& vote, const Log& log) {
  std::vector<std::string> records{identity_record(identity), vote_record(vote)};
  const Index snapshot = log.snapshot().index;
  if (snapshot > 0) records.push_back(snapshot_record(log.snapshot()));
  if (log.last() > snapshot) records.push_back(entries_record(log, snapshot + 1));
  return records;
}

void replay(std::string_view record, Saved& saved) {
  ByteReader in(record);
  switch (in.take_enum(Record::kEntries)) {
    case Record::kIdentity: {
      Identity& identity = saved.identity.emplace();
      identity.cluster = in.take<std::uint64_t>();
      identity.me = in.take<MemberId>();
      identity.incarnation = in.take<std::uint64_t>();
      identity.added = in.take<Index>();
      break;
    }
    case Record::kVote:
      saved.vote.term = in.take<Term>();
      saved.vote.candidate = in.take<MemberId>();
      break;
    case Record::kSnapshot: saved.log.install(decode_snapshot(in.take_text())); break;
    case Record::kEntries: replay_entries(in, saved.log); break;
  }
  in.expect_end();
}

}  // namespace weft::store::internal
