#include "weft/elastic/internal/part_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "weft/base/error.h"

namespace weft::elastic::internal {
namespace {

using checkpoint::Reader;

// Tags of messages.
constexpr int kRequest = 1, kRanges = 2, kBytes = 3;

at::Tensor numbers(std::int64_t count) { return at::empty({count}, at::kLong); }

void request(const Group& channel, int server, std::int64_t block, std::int64_t ranges) {
  at::Tensor text = numbers(2);
  text[0] = block;
  text[1] = ranges;
  channel.send(text, server, kRequest);
}

}  // namespace

void fetch(const Group& channel, int server, int block, const std::vector<Reader::Range>& ranges,
           std::byte* out) {
  request(channel, server, block, static_cast<std::int64_t>(ranges.size()));
  at::Tensor wanted = numbers(2 * static_cast<std::int64_t>(ranges.size()));
  auto* at = wanted.mutable_data_ptr<std::int64_t>();
  std::int64_t bytes = 0;
  for (const Reader::Range& range : ranges) {
    *at++ = range.begin;
    *at++ = range.bytes;
    bytes += range.bytes;
  }
  channel.send(wanted, server, kRanges);
  at::Tensor into = at::from_blob(out, {bytes}, at::kByte);
  channel.recv(into, server, kBytes);
}

void end_fetches(const Group& channel, int server) { request(channel, server, -1, 0); }

PartServer::PartServer(Group channel, std::map<int, at::Tensor> blocks, int clients)
    : channel_(std::move(channel)), blocks_(std::move(blocks)), thread_([this, clients] {
        try {
          serve(clients);
        } catch (...) {
          failure_ = std::current_exception();
          channel_.abort();  // so that no client waits
        }
      }) {}

PartServer::~PartServer() {
  if (!thread_.joinable()) return;
  channel_.abort();
  thread_.join();
}

void PartServer::finish() {
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
}

void PartServer::serve(int clients) {
  for (int left = clients; left > 0;) {
    at::Tensor text = numbers(2);
    std::vector<at::Tensor> texts{text};
    const auto work = channel_.backend().recvAnysource(texts, kRequest);
    channel_.wait(work, "read of a copy of the state");
    const auto block = text[0].item<std::int64_t>(), ranges = text[1].item<std::int64_t>();
    if (block < 0) {
      --left;
    } else {
      answer(work->sourceRank(), static_cast<int>(block), ranges);
    }
  }
}

void PartServer::answer(int client, int block, std::int64_t ranges) {
  const auto found = blocks_.find(block);
  const auto refuse = [](bool wrong) {
    if (wrong)
      throw Error(Errc::kCorrupt, "another rank asks for a part of the state that is not there");
  };
  // One range may be beyond the limit, since it ends the request.
  refuse(found == blocks_.end() || ranges < 1 ||
         ranges > static_cast<std::int64_t>(Reader::kFetchRanges));
  at::Tensor wanted = numbers(2 * ranges);
  channel_.recv(wanted, client, kRanges);
  const auto* const pairs = wanted.const_data_ptr<std::int64_t>();
  const std::int64_t size = found->second.numel();
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < ranges; ++i) {
    const std::int64_t begin = pairs[2 * i], length = pairs[2 * i + 1];
    refuse(length < 1 || length > Reader::kFetchBytes - bytes || begin < 0 ||
           begin > size - length);
    bytes += length;
  }
  if (ranges == 1) return channel_.send(found->second.narrow(0, pairs[0], bytes), client, kBytes);
  const at::Tensor joined = at::empty({bytes}, at::kByte);
  const auto* const from = static_cast<const std::byte*>(found->second.const_data_ptr());
  auto* to = static_cast<std::byte*>(joined.data_ptr());
  for (std::int64_t i = 0; i < ranges; ++i) {
    std::memcpy(to, from + pairs[2 * i], static_cast<std::size_t>(pairs[2 * i + 1]));
    to += pairs[2 * i + 1];
  }
  channel_.send(joined, client, kBytes);
}

}  // namespace weft::elastic::internal
