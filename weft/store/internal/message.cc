#include "weft/store/internal/message.h"

namespace weft::store::internal {
namespace {

constexpr std::uint32_t kGreetingMagic = 0x73544657;  // "WFTs"

}  // namespace

void put(ByteWriter& out, const LogEntry& entry) {
  out.put(entry.term);
  out.put(entry.kind);
  out.put_text(entry.data);
}

LogEntry take_entry(ByteReader& in) {
  LogEntry entry;
  entry.term = in.take<Term>();
  entry.kind = in.take_enum(LogEntry::Kind::kConfiguration);
  entry.data = in.take_text();
  if (entry.kind == LogEntry::Kind::kConfiguration) {
    ByteReader configuration(entry.data);
    take_configuration(configuration);
    configuration.expect_end();
  }
  return entry;
}

std::string encode(const Message& message) {
  ByteWriter out;
  out.put(message.type);
  for (const std::uint64_t number :
       {message.cluster, message.from, message.to, message.term, message.index, message.log_term,
        message.commit, message.round, message.offset, message.total})
    out.put(number);
  out.put(static_cast<std::uint8_t>(message.accepted));
  out.put(static_cast<std::uint32_t>(message.entries.size()));
  for (const LogEntry& entry : message.entries) put(out, entry);
  out.put_text(message.data);
  out.put(static_cast<std::uint32_t>(message.members.size()));
  for (const Member& member : message.members) put(out, member);
  return out.take();
}

Message decode_message(std::string_view bytes) {
  enum class Bool : std::uint8_t { kFalse, kTrue };
  constexpr std::size_t kEntryBytes = 13, kMemberBytes = 24;
  ByteReader in(bytes);
  Message message;
  message.type = in.take_enum(Message::kLastType);
  for (std::uint64_t* const number :
       {&message.cluster, &message.from, &message.to, &message.term, &message.index,
        &message.log_term, &message.commit, &message.round, &message.offset, &message.total})
    *number = in.take<std::uint64_t>();
  message.accepted = in.take_enum(Bool::kTrue) == Bool::kTrue;
  const auto entries = in.take_count(kEntryBytes);
  message.entries.reserve(entries);
  for (std::uint32_t i = 0; i < entries; ++i) message.entries.push_back(take_entry(in));
  message.data = in.take_text();
  const auto members = in.take_count(kMemberBytes);
  for (std::uint32_t i = 0; i < members; ++i) message.members.push_back(take_member(in));
  in.expect_end();
  return message;
}

std::string encode(const Greeting& greeting) {
  ByteWriter out;
  out.put(kGreetingMagic);
  out.put(greeting.version);
  out.put(greeting.node);
  out.put_text(greeting.address);
  return out.take();
}

Greeting decode_greeting(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.take<std::uint32_t>() != kGreetingMagic) ByteReader::fail();
  Greeting greeting;
  greeting.version = in.take<std::uint32_t>();
  if (greeting.version != Greeting::kVersion) return greeting;
  greeting.node = in.take<std::uint32_t>();
  greeting.address = in.take_text();
  in.expect_end();
  return greeting;
}

}  // namespace weft::store::internal
