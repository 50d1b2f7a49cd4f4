#include "weft/ps/internal/chain_message.h"

#include "weft/net/stream/bytes.h"

namespace weft::ps::internal {
namespace {

using net::internal::ByteReader;
using net::internal::ByteWriter;

constexpr std::size_t kCommandAlign = 16;

void put(ByteWriter& out, const Member& member) {
  out.put(member.server);
  out.put(member.incarnation);
}

Member take_member(ByteReader& in) {
  Member member;
  member.server = in.take<std::uint32_t>();
  member.incarnation = in.take<std::uint64_t>();
  return member;
}

}  // namespace

std::string encode(const ChainMessage& message) {
  ByteWriter out;
  out.put(message.kind);
  out.put(message.shard);
  out.put(message.view);
  put(out, message.from);
  put(out, message.to);
  out.put(message.position);
  out.put(message.committed);
  out.put(message.transfer);
  out.put(message.piece);
  out.put(message.pause_ms);
  while (out.size() % kCommandAlign != 0) out.put<std::uint8_t>(0);
  std::string bytes = out.take();
  bytes.reserve(bytes.size() + message.payload.size());
  return bytes.append(message.payload);
}

ChainMessage decode_chain_message(std::string_view bytes) {
  ByteReader in(bytes);
  ChainMessage message;
  message.kind = in.take_enum(ChainMessage::Kind::kAck);
  message.shard = in.take<std::uint32_t>();
  message.view = in.take<std::uint64_t>();
  message.from = take_member(in);
  message.to = take_member(in);
  message.position = in.take<std::uint64_t>();
  message.committed = in.take<std::uint64_t>();
  message.transfer = in.take<std::uint64_t>();
  message.piece = in.take<std::uint64_t>();
  message.pause_ms = in.take<std::uint64_t>();
  while ((bytes.size() - in.left()) % kCommandAlign != 0) in.take<std::uint8_t>();
  message.payload = bytes.substr(bytes.size() - in.left());
  return message;
}

std::string encode(const View& view) {
  ByteWriter out;
  out.put(view.number);
  out.put(static_cast<std::uint32_t>(view.members.size()));
  for (const Member& member : view.members) put(out, member);
  out.put<std::uint8_t>(view.joining.has_value());
  if (view.joining) put(out, *view.joining);
  return out.take();
}

View decode_view(std::string_view bytes) {
  ByteReader in(bytes);
  View view;
  view.number = in.take<std::uint64_t>();
  view.members.resize(in.take_count(sizeof(std::uint32_t) + sizeof(std::uint64_t)));
  for (Member& member : view.members) member = take_member(in);
  if (in.take<std::uint8_t>() != 0) view.joining = take_member(in);
  in.expect_end();
  return view;
}

std::string encode(const ServerAddress& address) {
  ByteWriter out;
  out.put_text(address.local);
  out.put_text(address.tcp);
  return out.take();
}

ServerAddress decode_address(std::string_view bytes) {
  ByteReader in(bytes);
  ServerAddress address;
  address.local = std::string(in.take_text());
  address.tcp = std::string(in.take_text());
  in.expect_end();
  return address;
}

}  // namespace weft::ps::internal
