// Requests of a client, and the answers to them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/kernels/reduce.h"
#include "weft/ps/internal/client_impl.h"
#include "weft/ps/internal/codecs.h"

namespace weft::ps {

using internal::Op;
using internal::Outcome;

float* Client::Impl::area(int number) const {
  const auto first = static_cast<std::uint64_t>(options_.pipeline);
  const std::uint64_t offset = (first + static_cast<std::uint64_t>(number)) * stride_;
  return reinterpret_cast<float*>(memory_.data() + offset);
}

void Client::Impl::require_worker() const {
  WEFT_REQUIRE(is_defined_, "call define() first");
  WEFT_REQUIRE(options_.worker, "a client without a worker's number only pulls");
}

std::size_t Client::Impl::find(const std::string& name) const {
  const auto found = index_.find(name);
  WEFT_REQUIRE(found != index_.end(), "the parameter server has no tensor " + name);
  return found->second;
}

std::vector<bool> Client::Impl::choose(const std::vector<std::string>& names) const {
  WEFT_REQUIRE(is_defined_, "call define() first");
  std::vector<bool> chosen(tensors_.size(), names.empty());
  for (const std::string& name : names) chosen[find(name)] = true;
  return chosen;
}

void Client::Impl::check_finite(const std::string& name, const float* values,
                                std::size_t count) const {
  if (kernels::is_within(values, static_cast<std::int64_t>(count),
                         std::numeric_limits<float>::max()))
    return;
  const float* const bad =
      std::find_if(values, values + count, [](float value) { return !std::isfinite(value); });
  throw Error(Errc::kInvalidArgument, "worker " + std::to_string(*options_.worker) + " pushes " +
                                          (std::isnan(*bad) ? "NaN" : "infinity") + " for " + name +
                                          "[" + std::to_string(bad - values) +
                                          "]; nothing was sent");
}

Client::Impl::Request Client::Impl::read(Op op, std::uint32_t shard) {
  Request request;
  request.op = op;
  request.shard = shard;
  request.id = ++last_id_;
  request.client = client_;
  request.worker = options_.worker.value_or(internal::kNoWorker);
  request.sequence = shards_[shard].sequence;
  request.done = shards_[shard].answered;
  return request;
}

Client::Impl::Outstanding Client::Impl::command(Op op, std::uint32_t shard) {
  ++shards_[shard].sequence;
  Outstanding outstanding;
  outstanding.request = read(op, shard);
  return outstanding;
}

// The payload of a push: in place if all tensors go without a codec.
void Client::Impl::load(Outstanding& push, const Shard& shard, const std::vector<bool>& chosen,
                        const float* values) {
  Request& request = push.request;
  const bool all = std::find(chosen.begin(), chosen.end(), false) == chosen.end();
  const bool as_is = !push_codec_ || request.exact;
  if (request.exact && !residual_.empty()) {
    for (const Piece& piece : shard.pieces)
      if (chosen[piece.tensor])
        std::fill_n(residual_.data() + offset_of(piece), static_cast<std::size_t>(piece.count),
                    0.0f);
  }
  if (all && as_is && !shard.pieces.empty()) {
    request.offset = offset_of(values + offset_of(shard.pieces.front()));
    for (const Piece& piece : shard.pieces)
      request.bytes += sizeof(float) * static_cast<std::uint64_t>(piece.count);
    return;
  }
  const std::uint64_t seed = compress::parse(spec_.push_codec).seed;
  std::vector<float> with_residual;
  for (std::uint32_t key = 0; key < shard.pieces.size(); ++key) {
    const Piece& piece = shard.pieces[key];
    if (!chosen[piece.tensor]) continue;
    request.keys.push_back(key);
    const std::size_t offset = offset_of(piece);
    std::span<const float> given(values + offset, static_cast<std::size_t>(piece.count));
    if (as_is) {
      push.payload.append(reinterpret_cast<const char*>(given.data()), given.size_bytes());
      continue;
    }
    float* const residual = residual_.empty() ? nullptr : residual_.data() + offset;
    if (residual != nullptr) {
      with_residual.assign(given.begin(), given.end());
      for (std::size_t i = 0; i < with_residual.size(); ++i) with_residual[i] += residual[i];
      given = with_residual;
    }
    const compress::Draw draw = internal::draw_of(seed, request, key);
    push.payload += internal::encode_values(*push_codec_, given, draw, residual);
  }
  if (request.keys.empty()) request.keys = {internal::kNoKeys};
}

// One request for each run of neighboring pieces that goes to the same area.
void Client::Impl::pull_shard(std::uint32_t number, const std::vector<bool>& chosen,
                              Ticket ticket) {
  const Shard& shard = shards_[number];
  const auto target_of = [&](const Piece& piece) { return tensors_[piece.tensor].area ^ 1; };
  for (std::uint32_t key = 0; key < shard.pieces.size();) {
    if (!chosen[shard.pieces[key].tensor]) {
      ++key;
      continue;
    }
    Outstanding run;
    run.request = read(Op::kPull, number);
    const int target = target_of(shard.pieces[key]);
    run.request.offset = offset_of(area(target) + offset_of(shard.pieces[key]));
    for (; key < shard.pieces.size(); ++key) {
      const Piece& piece = shard.pieces[key];
      if (!chosen[piece.tensor] || target_of(piece) != target) break;
      run.request.keys.push_back(key);
      run.request.bytes += sizeof(float) * static_cast<std::uint64_t>(piece.count);
    }
    send(number, std::move(run), ticket);
  }
}

// Values of the tensors that the servers do not know yet, and differences of the others.
void Client::Impl::pull_deltas(std::uint32_t number, const std::vector<bool>& chosen,
                               Ticket ticket) {
  const std::vector<Piece>& pieces = shards_[number].pieces;
  for (const bool known : {false, true}) {
    std::vector<std::uint32_t> keys;
    for (std::uint32_t key = 0; key < pieces.size(); ++key) {
      const std::uint32_t tensor = pieces[key].tensor;
      if (chosen[tensor] && tensors_[tensor].is_known == known) keys.push_back(key);
    }
    if (keys.empty()) continue;
    Outstanding pull = command(Op::kPullDelta, number);
    pull.request.keys = std::move(keys);
    pull.request.version = known ? 0 : 1;
    send(number, std::move(pull), ticket);
  }
}

void Client::Impl::take_deltas(const Request& pull, std::string_view payload) {
  const std::uint64_t seed = compress::parse(spec_.pull_codec).seed;
  const bool whole = pull.version != 0;
  for (const std::uint32_t key : pull.keys) {
    const Piece& piece = shards_[pull.shard].pieces[key];
    const int has = tensors_[piece.tensor].area;
    const auto count = static_cast<std::size_t>(piece.count);
    const float* const from = area(has) + offset_of(piece);
    const std::span<float> to(area(has ^ 1) + offset_of(piece), count);
    std::copy_n(from, count, to.begin());
    if (!whole && delta_codec_) {
      internal::decode_values(*delta_codec_, payload, internal::draw_of(seed, pull, key), to);
      continue;
    }
    if (payload.size() < sizeof(float) * count)
      throw Error(Errc::kCorrupt, "a server sent fewer values than were pulled");
    std::vector<float> sent(count);
    if (count > 0) std::memcpy(sent.data(), payload.data(), sizeof(float) * count);
    for (std::size_t i = 0; i < count; ++i) to[i] = whole ? sent[i] : to[i] + sent[i];
    payload.remove_prefix(sizeof(float) * count);
  }
}

void Client::Impl::take(Shard& shard, const Outstanding& outstanding,
                        const internal::Answer& answer, std::string_view payload) {
  const Request& request = outstanding.request;
  if (is_command(request.op)) shard.answered = std::max(shard.answered, request.sequence);
  const auto rows = row_requests_.extract(request.id);
  if (!rows.empty()) arena_.give_back(rows.mapped().offset);  // nobody takes it before this returns
  const auto ticket = tickets_.find(outstanding.ticket);
  if (ticket == tickets_.end()) return;
  --ticket->second.left;
  if (answer.outcome == Outcome::kRefused) {
    if (!ticket->second.error) ticket->second.error = Error(answer.code, answer.text);
    return;
  }
  if (request.op == Op::kStats) {
    const internal::ShardStats part = internal::decode_stats(payload);
    for (std::size_t i = 0; i < stats_.staleness.size(); ++i)
      stats_.staleness[i] += part.staleness[i];
    stats_.updates = std::max(stats_.updates, part.updates);
    stats_.memory_bytes += part.memory_bytes;
    stats_.file_bytes += part.file_bytes;
    stats_.rows += part.rows;
    stats_.workers = std::min(stats_.workers, part.workers);
    return;
  }
  if (request.op == Op::kSave) {
    saved_ = std::string(payload);
    return;
  }
  shard.clock = answer.clock;
  if (request.op == Op::kPullRows && !rows.empty())
    return take_rows(request, rows.mapped(), payload);
  if (request.op == Op::kPullDelta) {
    shard.version = answer.version;
    return take_deltas(request, payload);
  }
  if (request.op != Op::kPull) return;
  shard.version = answer.version;
  take_values(request, payload);
}

// Values that have come in a message (else the server has written them), and codes of values.
void Client::Impl::take_values(const Request& pull, std::string_view payload) {
  auto* const values = reinterpret_cast<float*>(memory_.data() + pull.offset);
  const auto bytes = static_cast<std::size_t>(pull.bytes);
  if (payload.size() > bytes)
    throw Error(Errc::kCorrupt, "a server sent more values than were pulled");
  if (!pull_codec_) {
    if (!payload.empty() && payload.size() != bytes)
      throw Error(Errc::kCorrupt, "a server sent fewer values than were pulled");
    if (!payload.empty()) std::memcpy(values, payload.data(), payload.size());
    return;
  }
  std::size_t coded = 0;
  for (const std::uint32_t key : pull.keys)
    coded += static_cast<std::size_t>(pull_codec_->bytes(shards_[pull.shard].pieces[key].count));
  if (!payload.empty() && payload.size() != coded)
    throw Error(Errc::kCorrupt, "a server sent " + std::to_string(payload.size()) +
                                    " bytes of codes, expected " + std::to_string(coded));
  std::vector<std::byte> codes(bytes);
  const void* const from = payload.empty() ? static_cast<const void*>(values) : payload.data();
  std::memcpy(codes.data(), from, payload.empty() ? bytes : payload.size());
  std::memset(values, 0, bytes);
  std::span<const std::byte> rest(codes);
  float* at = values;
  for (const std::uint32_t key : pull.keys) {
    const std::int64_t count = shards_[pull.shard].pieces[key].count;
    const auto size = static_cast<std::size_t>(pull_codec_->bytes(count));
    pull_codec_->add(rest.first(size), {}, {at, static_cast<std::size_t>(count)});
    rest = rest.subspan(size);
    at += count;
  }
}

}  // namespace weft::ps
