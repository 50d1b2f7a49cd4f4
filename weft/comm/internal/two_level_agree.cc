// Checks that the ranks of all hosts make the same call: a meeting on each host, then each rank
// exchanges one message with each other host.
#include "weft/comm/internal/two_level_parts.h"
#include "weft/kernels/reduce.h"

namespace weft::comm::internal {
namespace {

constexpr net::Channel kHeaders = net::Channel{1} << 57;

}  // namespace

bool TwoLevel::agree(const Call& call, const CallExchange::Note& note, std::int64_t inline_bytes) {
  net::Host& host = transports_.host();
  calls_.show(note, call.args.input, static_cast<std::size_t>(inline_bytes), call.name,
              call.args.timeout);
  inputs_.clear();
  outputs_.clear();
  for (int peer = 0; peer < host.world(); ++peer) {
    const auto& shown = calls_.note(peer);
    inputs_.push_back(shown.input == net::Host::kNoToken ? nullptr : host.at(peer, shown.input));
    outputs_.push_back(shown.output == net::Host::kNoToken ? nullptr : host.at(peer, shown.output));
  }
  const Header mine = header_of_host();
  exchange_headers(call, mine, mine.other_rank < 0 ? inline_bytes : 0);
  bool flat = false;
  for (const Header& header : headers_) flat = flat || header.flat != 0;
  return !flat;
}

TwoLevel::Header TwoLevel::header_of_host() const {
  Header header;
  header.first = calls_.note(0).signature;
  header.first_rank = map_.members()[0];
  for (int peer = 0; peer < map_.local_world(); ++peer) {
    const auto& note = calls_.note(peer);
    header.flat |= note.flat;
    if (header.other_rank >= 0 || note.signature == header.first) continue;
    header.other = note.signature;
    header.other_rank = map_.members()[static_cast<std::size_t>(peer)];
  }
  return header;
}

// The host's sum of a small array is sent together with the header: one network latency instead of
// two.
void TwoLevel::exchange_headers(const Call& call, const Header& mine, std::int64_t inline_bytes) {
  const auto hosts = static_cast<std::size_t>(map_.num_hosts()),
             here = static_cast<std::size_t>(map_.host);
  data_[here].resize(static_cast<std::size_t>(inline_bytes));
  if (inline_bytes > 0) {
    std::vector<const void*> sources;
    for (int peer = 0; peer < map_.local_world(); ++peer) sources.push_back(calls_.data(peer));
    void* sum = data_[here].data();
    count_in_host(inline_bytes);
    kernels::reduce(&sum, 1, sources.data(), map_.local_world(),
                    {call.args.dtype, within(call.args.op), call.args.count});
  }
  std::vector<net::Send> sends;
  std::vector<net::Recv> recvs, data;
  for (std::size_t host = 0; host < hosts; ++host) {
    if (host == here) continue;
    for (const int peer : served(static_cast<int>(host))) {
      sends.push_back({peer, std::as_bytes(std::span(&mine, 1))});
      if (inline_bytes > 0) sends.push_back({peer, data_[here]});
    }
    data_[host].resize(static_cast<std::size_t>(inline_bytes));
    recvs.push_back(
        {partner(static_cast<int>(host)), std::as_writable_bytes(std::span(&headers_[host], 1))});
    if (inline_bytes > 0) data.push_back({partner(static_cast<int>(host)), data_[host]});
  }
  endpoint_.exchange(kHeaders, sends, recvs, call.deadline());
  headers_[here] = mine;
  mismatch(mine);
  for (const Header& header : headers_) mismatch(header);
  if (!data.empty()) endpoint_.exchange(kHeaders, {}, data, call.deadline());
}

// Every rank detects the mismatch by itself, since the headers contain it, whichever rank is
// different.
void TwoLevel::mismatch(const Header& header) {
  const Header& mine = headers_[static_cast<std::size_t>(map_.host)];
  std::optional<Error> error;
  if (header.other_rank >= 0) {
    error = net::mismatch_error(header.first_rank, header.first, header.other_rank, header.other);
  } else if (!(header.first == mine.first)) {
    error = net::mismatch_error(mine.first_rank, mine.first, header.first_rank, header.first);
  }
  if (!error) return;
  transports_.conclude(*error);
  throw *error;
}

}  // namespace weft::comm::internal
