#include "weft/comm/texts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "weft/base/caught/caught.h"

namespace weft::comm {
namespace {

// Pads the text to `length` bytes.
at::Tensor padded(const std::string& text, std::int64_t length) {
  at::Tensor bytes = at::zeros({length}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string text_of(const at::Tensor& bytes, std::int64_t length) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(length)};
}

std::vector<std::int64_t> all_lengths(const Group& group, const std::string& mine) {
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(mine.size()), at::kLong);
  at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, length);
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + group.size()};
}

// Empty messages are not sent, so a text has at least one byte.
std::int64_t longest(const std::vector<std::int64_t>& lengths) {
  return std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
}

}  // namespace

std::string broadcast_text(const Group& group, const std::string& text, int root) {
  at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  group.broadcast(length, root);
  const auto bytes = length.item<std::int64_t>();
  if (bytes == 0) return "";
  at::Tensor all = group.rank() == root ? padded(text, bytes) : at::empty({bytes}, at::kByte);
  group.broadcast(all, root);
  return text_of(all, bytes);
}

std::vector<std::string> all_gather_texts(const Group& group, const std::string& mine) {
  const auto lengths = all_lengths(group, mine);
  const at::Tensor text = padded(mine, longest(lengths));
  at::Tensor all = at::empty({group.size(), text.numel()}, at::kByte);
  group.all_gather(all, text.unsqueeze(0));
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank)
    texts.push_back(text_of(all[rank], lengths[static_cast<std::size_t>(rank)]));
  return texts;
}

std::vector<std::string> gather_texts(const Group& group, const std::string& mine) {
  const auto lengths = all_lengths(group, mine);
  std::vector<std::string> texts;
  for (const at::Tensor& bytes : group.gather(padded(mine, longest(lengths))))
    texts.push_back(text_of(bytes, lengths[texts.size()]));
  return texts;
}

void together(const Group& group, const std::function<void()>& work,
              const TogetherOptions& options) {
  if (group.size() == 1) return work();
  std::exception_ptr own;
  std::string why;
  try {
    work();
  } catch (const std::exception& error) {
    own = std::current_exception();
    why = " " + as_error(error).message();
  }
  const auto all = options.exchange ? options.exchange(why) : all_gather_texts(group, why);
  if (own) std::rethrow_exception(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    throw Error(Errc::kAborted,
                "rank " + std::to_string(rank) + " " + options.failed + ":" + all[rank],
                {options.operation, group.rank(), static_cast<int>(rank)});
  }
}

bool holds_on_all(const Group& group, bool here) {
  if (group.size() == 1) return here;
  at::Tensor all = at::full({1}, here ? 1 : 0, at::kInt);
  group.all_reduce(all, ReduceOp::kMin);
  return all.item<int>() != 0;
}

std::pair<std::string, std::string> first_difference(const std::string& mine,
                                                     const std::string& other) {
  std::size_t at = 0;
  while (at < mine.size() && at < other.size() && mine[at] == other[at]) ++at;
  const std::size_t before = at == 0 ? std::string::npos : mine.rfind("; ", at - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 2;
  const auto entry = [&](const std::string& list) {
    return begin >= list.size() ? std::string("nothing")
                                : "'" + list.substr(begin, list.find("; ", begin) - begin) + "'";
  };
  return {entry(mine), entry(other)};
}

}  // namespace weft::comm
