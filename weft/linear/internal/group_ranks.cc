#include "weft/linear/internal/group_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "weft/base/caught/caught.h"
#include "weft/comm/texts.h"

namespace weft::linear::internal {
namespace {

at::Tensor as_tensor(std::span<double> values) {
  return at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
}

// Part [at, at + bytes) of each text, padded with zeros.
at::Tensor parts(const std::vector<std::string>& texts, std::size_t at, std::size_t bytes) {
  at::Tensor block = at::zeros(
      {static_cast<std::int64_t>(texts.size()), static_cast<std::int64_t>(bytes)}, at::kByte);
  auto* to = block.mutable_data_ptr<std::uint8_t>();
  for (const std::string& text : texts) {
    if (at < text.size()) std::memcpy(to, text.data() + at, std::min(bytes, text.size() - at));
    to += bytes;
  }
  return block;
}

}  // namespace

GroupRanks::GroupRanks(Group group) : group_(std::move(group)), before_(moved()) {}

std::uint64_t GroupRanks::moved() const {
  const auto traffic = group_.traffic();
  return traffic.sent_bytes + traffic.shared_bytes;
}

std::uint64_t GroupRanks::exchanged_bytes() const { return moved() - before_; }

void GroupRanks::sum(std::span<double> values) {
  if (size() == 1) return;
  at::Tensor tensor = as_tensor(values);
  group_.all_reduce(tensor);
}

void GroupRanks::max(std::span<double> values) {
  if (size() == 1) return;
  at::Tensor tensor = as_tensor(values);
  group_.all_reduce(tensor, ReduceOp::kMax);
}

std::vector<std::string> GroupRanks::gather(const std::string& mine) {
  return comm::all_gather_texts(group_, mine);
}

// An all-to-all of equal blocks, as often as the longest text needs.
std::vector<std::string> GroupRanks::exchange(std::vector<std::string> to) {
  constexpr std::size_t kBlock = 1 << 20;
  std::string sizes;
  for (const std::string& text : to) {
    const std::uint64_t size = text.size();
    sizes.append(reinterpret_cast<const char*>(&size), sizeof size);
  }
  std::vector<std::uint64_t> of_me(to.size());
  std::uint64_t longest = 0;
  const auto all = gather(sizes);
  for (std::size_t from = 0; from < all.size(); ++from) {
    std::vector<std::uint64_t> of_rank(to.size());
    std::memcpy(of_rank.data(), all[from].data(), all[from].size());
    longest = std::max(longest, *std::max_element(of_rank.begin(), of_rank.end()));
    of_me[from] = of_rank[static_cast<std::size_t>(rank())];
  }
  std::vector<std::string> got(to.size());
  for (std::size_t at = 0; at < longest; at += kBlock) {
    const std::size_t bytes = std::min<std::size_t>(kBlock, longest - at);
    const at::Tensor mine = parts(to, at, bytes);
    at::Tensor theirs = at::empty_like(mine);
    group_.all_to_all(theirs, mine);
    const auto* block = reinterpret_cast<const char*>(theirs.const_data_ptr<std::uint8_t>());
    for (std::size_t from = 0; from < got.size(); ++from, block += bytes) {
      if (at < of_me[from]) got[from].append(block, std::min(bytes, of_me[from] - at));
    }
  }
  return got;
}

void together(Ranks& ranks, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (const std::exception& caught) {
    if (ranks.size() == 1) throw;
    const Error error = as_error(caught);
    mine = static_cast<char>(error.code()) + error.message();
  }
  for (const std::string& of_rank : ranks.gather(mine)) {
    if (!of_rank.empty()) throw Error(static_cast<Errc>(of_rank[0]), of_rank.substr(1));
  }
}

}  // namespace weft::linear::internal
