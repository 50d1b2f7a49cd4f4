// The replicated state as bytes.
#include "weft/store/internal/bytes.h"
#include "weft/store/internal/key_values.h"

namespace weft::store::internal {

std::string KeyValues::snapshot() const {
  ByteWriter out;
  out.put(revision_);
  out.put(last_lease_);
  out.put(commands_);
  out.put(static_cast<std::uint32_t>(leases_.size()));
  for (const auto& [id, lease] : leases_) {
    out.put(id);
    out.put(static_cast<std::int64_t>(lease.ttl.count()));
    out.put(lease.renewals);
  }
  out.put(static_cast<std::uint32_t>(entries_.size()));
  for (const auto& [key, entry] : entries_) {
    out.put_text(key);
    out.put_text(entry.bytes);
    out.put(entry.revision);
    out.put(entry.lease);
  }
  out.put(static_cast<std::uint32_t>(sessions_.size()));
  for (const auto& [client, session] : sessions_) {
    out.put(client);
    out.put(session.sequence);
    out.put(session.used);
    out.put_text(encode(session.response));
  }
  return out.take();
}

void KeyValues::restore(std::string_view snapshot) {
  ByteReader in(snapshot);
  KeyValues state(deduplicates_);
  state.revision_ = in.take<Revision>();
  state.last_lease_ = in.take<LeaseId>();
  state.commands_ = in.take<std::uint64_t>();
  for (auto left = in.take<std::uint32_t>(); left > 0; --left) {
    const auto id = in.take<LeaseId>();
    const std::chrono::milliseconds ttl(in.take<std::int64_t>());
    state.leases_[id] = {ttl, in.take<std::uint64_t>()};
  }
  for (auto left = in.take<std::uint32_t>(); left > 0; --left) {
    std::string key(in.take_text());
    Entry entry;
    entry.bytes = in.take_text();
    entry.revision = in.take<Revision>();
    entry.lease = in.take<LeaseId>();
    if (entry.lease != 0) {
      const auto lease = state.leases_.find(entry.lease);
      if (lease == state.leases_.end()) ByteReader::fail();
      lease->second.keys.insert(key);
    }
    state.bytes_ += size_of(key, entry.bytes.size());
    state.entries_[std::move(key)] = std::move(entry);
  }
  for (auto left = in.take<std::uint32_t>(); left > 0; --left) {
    const auto client = in.take<std::uint64_t>();
    Session session;
    session.sequence = in.take<std::uint64_t>();
    session.used = in.take<std::uint64_t>();
    session.response = decode_response(in.take_text());
    state.sessions_by_use_[session.used] = client;
    state.answer_bytes_ += session.bytes();
    state.sessions_[client] = std::move(session);
  }
  in.expect_end();
  state.changes_.restart(state.revision_);
  *this = std::move(state);
}

}  // namespace weft::store::internal
