#include "weft/store/status.h"

#include <algorithm>

#include "weft/store/internal/bytes.h"

namespace weft::store {

bool StoreStatus::decides_without(std::uint32_t lost) const {
  const auto left = voters.size() - static_cast<std::size_t>(std::ranges::count(voters, lost));
  const bool has_first = !voters.empty() && voters.front() != lost;
  return 2 * left > voters.size() || (2 * left == voters.size() && has_first);
}

namespace internal {
namespace {

constexpr std::uint32_t kNoNode = ~std::uint32_t{0};

void put_nodes(ByteWriter& out, const std::vector<std::uint32_t>& nodes) {
  out.put(static_cast<std::uint32_t>(nodes.size()));
  for (const std::uint32_t node : nodes) out.put(node);
}

std::vector<std::uint32_t> take_nodes(ByteReader& in) {
  std::vector<std::uint32_t> nodes(in.take_count(sizeof(std::uint32_t)));
  for (std::uint32_t& node : nodes) node = in.take<std::uint32_t>();
  return nodes;
}

}  // namespace

std::string encode(const StoreStatus& status) {
  ByteWriter out;
  out.put(status.node);
  out.put(status.leader.value_or(kNoNode));
  out.put(status.term);
  put_nodes(out, status.voters);
  put_nodes(out, status.members);
  out.put(status.log_entries);
  return out.take();
}

StoreStatus decode_status(std::string_view bytes) {
  ByteReader in(bytes);
  StoreStatus status;
  status.node = in.take<std::uint32_t>();
  const auto leader = in.take<std::uint32_t>();
  if (leader != kNoNode) status.leader = leader;
  status.term = in.take<std::uint64_t>();
  status.voters = take_nodes(in);
  status.members = take_nodes(in);
  status.log_entries = in.take<std::uint64_t>();
  in.expect_end();
  return status;
}

}  // namespace internal
}  // namespace weft::store
