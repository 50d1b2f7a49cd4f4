#include "weft/ps/internal/client_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "weft/kernels/reduce.h"
#include "weft/ps/internal/codecs.h"

namespace weft::ps::internal {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::uint64_t kValueAreas = 2;

}  // namespace

void ClientTensors::define(const std::vector<Tensor>& tensors, const Options& options) {
  // An earlier call may have been refused.
  tensors_.clear();
  index_.clear();
  shards_.clear();
  pull_codec_.reset();
  delta_codec_.reset();
  residual_.clear();
  std::vector<TensorSize> sizes;
  std::size_t count = 0;
  for (const Tensor& tensor : tensors) {
    WEFT_REQUIRE(index_.emplace(tensor.name, sizes.size()).second,
                 "tensor " + tensor.name + " is defined twice");
    tensors_.push_back({tensor.values.size(), count});
    sizes.push_back({tensor.name, static_cast<std::int64_t>(tensor.values.size())});
    count += tensor.values.size();
  }
  const ClientOptions& client = requests_.options();
  for (std::uint32_t i = 0; i < client.servers; ++i) {
    auto pieces = pieces_of(sizes, i, client.servers);
    const std::size_t several = pieces.size();
    shards_.push_back({std::move(pieces), 0, std::vector<std::uint32_t>(several)});
  }
  options_ = options;
  push_codec_ = codec_of(options.push_codec);
  (options.pull_deltas ? delta_codec_ : pull_codec_) = codec_of(options.pull_codec);
  if (compress::parse(options.push_codec).memory == compress::Memory::kFeedback)
    residual_.assign(count, 0);
  stride_ = (sizeof(float) * count + kLine - 1) / kLine * kLine;
  slots_.assign(static_cast<std::size_t>(client.pipeline), Slot{});
}

Definition ClientTensors::definition_of(std::uint32_t shard,
                                        const std::vector<Tensor>& tensors) const {
  Definition definition;
  definition.options = options_;
  for (const Piece& piece : shards_[shard].pieces) {
    const Tensor& tensor = tensors[piece.tensor];
    definition.parts.push_back({tensor.name, piece.first, piece.count});
    const auto values = tensor.values.subspan(static_cast<std::size_t>(piece.first),
                                              static_cast<std::size_t>(piece.count));
    definition.values.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  }
  return definition;
}

std::uint64_t ClientTensors::memory_bytes() const {
  return (slots_.size() + kValueAreas) * stride_;
}

float* ClientTensors::area(int number) const {
  const auto first = static_cast<std::uint64_t>(requests_.options().pipeline);
  const std::uint64_t offset = (first + static_cast<std::uint64_t>(number)) * stride_;
  return reinterpret_cast<float*>(requests_.memory() + offset);
}

std::size_t ClientTensors::find(const std::string& name) const {
  const auto found = index_.find(name);
  WEFT_REQUIRE(found != index_.end(), "the parameter server has no tensor " + name);
  return found->second;
}

std::vector<bool> ClientTensors::choose(const std::vector<std::string>& names) const {
  std::vector<bool> chosen(tensors_.size(), names.empty());
  for (const std::string& name : names) chosen[find(name)] = true;
  return chosen;
}

void ClientTensors::check_finite(const std::string& name, const float* values,
                                 std::size_t count) const {
  if (kernels::is_within(values, static_cast<std::int64_t>(count),
                         std::numeric_limits<float>::max()))
    return;
  const float* const bad =
      std::find_if(values, values + count, [](float value) { return !std::isfinite(value); });
  throw Error(Errc::kInvalidArgument, "worker " + std::to_string(*requests_.options().worker) +
                                          " pushes " + (std::isnan(*bad) ? "NaN" : "infinity") +
                                          " for " + name + "[" + std::to_string(bad - values) +
                                          "]; nothing was sent");
}

std::span<float> ClientTensors::gradient(const std::string& name) {
  const Place& tensor = tensors_[find(name)];
  free_slot();
  return {slot() + tensor.offset, tensor.count};
}

ClientTensors::Ticket ClientTensors::push(const std::vector<std::string>& names, double lr,
                                          Coding coding) {
  WEFT_REQUIRE(std::isfinite(lr), "the learning rate of a push must be finite");
  const std::vector<bool> chosen = choose(names);
  requests_.await_commands();
  free_slot();
  for (const auto& [name, i] : index_) {
    if (chosen[i]) check_finite(name, slot() + tensors_[i].offset, tensors_[i].count);
  }
  Slot& push = slots_[slot_];
  push.ticket = requests_.open_ticket();
  push.requests.clear();
  push.undo = residual_;
  for (std::uint32_t i = 0; i < requests_.options().servers; ++i) {
    Outstanding request = requests_.command(Op::kPush, i);
    request.request.version = shards_[i].version;
    request.request.lr = lr;
    request.request.exact = coding == Coding::kExact;
    load(request, shards_[i], chosen, slot());
    push.requests.push_back(request.request.id);
    requests_.send(i, std::move(request), push.ticket);
  }
  for (std::size_t i = 0; i < residual_.size(); ++i) push.undo[i] -= residual_[i];
  slot_ = (slot_ + 1) % slots_.size();
  return push.ticket;
}

// Later pushes may be outstanding, whose residuals begin with that of this one. So its difference
// is added.
void ClientTensors::take_refusal(const Request& request) {
  if (request.op != Op::kPush || residual_.empty()) return;
  for (const Slot& push : slots_) {
    if (push.requests.size() <= request.shard || push.requests[request.shard] != request.id)
      continue;
    for (const Piece& piece : shards_[request.shard].pieces) {
      const std::size_t first = offset_of(piece);
      for (std::size_t i = first; i < first + static_cast<std::size_t>(piece.count); ++i)
        residual_[i] += push.undo[i];
    }
  }
}

ClientTensors::Ticket ClientTensors::pull(const std::vector<std::string>& names, Coding coding) {
  const std::vector<bool> chosen = choose(names);
  const bool exact = coding == Coding::kExact;
  WEFT_REQUIRE(!exact || !pull_codec_, "pull_codec = \"" + options_.pull_codec +
                                           "\": a pull without the codec needs pull_deltas");
  WEFT_REQUIRE(!pull_, "another pull is outstanding; wait for it first");
  const Ticket ticket = requests_.open_ticket();
  const bool as_deltas = options_.pull_deltas && requests_.options().worker && !exact;
  for (std::uint32_t i = 0; i < requests_.options().servers; ++i) {
    if (as_deltas)
      pull_deltas(i, chosen, ticket);
    else
      pull_shard(i, chosen, ticket);
  }
  if (as_deltas) requests_.hold_commands(ticket);
  pull_ = Pull{ticket, chosen, exact};
  return ticket;
}

std::span<const float> ClientTensors::value(const std::string& name) const {
  const Place& tensor = tensors_[find(name)];
  return {area(tensor.area) + tensor.offset, tensor.count};
}

void ClientTensors::forget_known() {
  for (Place& tensor : tensors_) tensor.is_known = false;
}

void ClientTensors::finish(Ticket ticket, bool is_done) {
  if (!pull_ || pull_->ticket != ticket) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!pull_->tensors[i]) continue;
    tensors_[i].is_known = is_done && !pull_->exact;
    if (is_done) tensors_[i].area ^= 1;
  }
  pull_.reset();
}

void ClientTensors::take(const Request& request, const Answer& answer, std::string_view payload) {
  if (request.op != Op::kPull && request.op != Op::kPullDelta) return;
  shards_[request.shard].version = answer.version;
  if (request.op == Op::kPull) return take_values(request, payload);
  take_deltas(request, payload);
}

// The payload of a push: in place if all tensors go without a codec.
void ClientTensors::load(Outstanding& push, Shard& shard, const std::vector<bool>& chosen,
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
    request.offset = requests_.offset_of(values + offset_of(shard.pieces.front()));
    for (const Piece& piece : shard.pieces)
      request.bytes += sizeof(float) * static_cast<std::uint64_t>(piece.count);
    return;
  }
  const std::uint64_t seed = compress::parse(options_.push_codec).seed;
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
    const compress::Draw draw = draw_of(seed, request, key, shard.encoded[key]++);
    push.payload += encode_values(*push_codec_, given, draw, residual);
  }
  if (request.keys.empty()) request.keys = {kNoKeys};
}

// One request for each run of neighboring pieces that goes to the same area.
void ClientTensors::pull_shard(std::uint32_t number, const std::vector<bool>& chosen,
                               Ticket ticket) {
  const Shard& shard = shards_[number];
  const auto target_of = [&](const Piece& piece) { return tensors_[piece.tensor].area ^ 1; };
  for (std::uint32_t key = 0; key < shard.pieces.size();) {
    if (!chosen[shard.pieces[key].tensor]) {
      ++key;
      continue;
    }
    Outstanding run;
    run.request = requests_.read(Op::kPull, number);
    const int target = target_of(shard.pieces[key]);
    run.request.offset = requests_.offset_of(area(target) + offset_of(shard.pieces[key]));
    for (; key < shard.pieces.size(); ++key) {
      const Piece& piece = shard.pieces[key];
      if (!chosen[piece.tensor] || target_of(piece) != target) break;
      run.request.keys.push_back(key);
      run.request.bytes += sizeof(float) * static_cast<std::uint64_t>(piece.count);
    }
    requests_.send(number, std::move(run), ticket);
  }
}

// Values of the tensors that the servers do not know yet, and differences of the others.
void ClientTensors::pull_deltas(std::uint32_t number, const std::vector<bool>& chosen,
                                Ticket ticket) {
  const std::vector<Piece>& pieces = shards_[number].pieces;
  for (const bool known : {false, true}) {
    std::vector<std::uint32_t> keys;
    for (std::uint32_t key = 0; key < pieces.size(); ++key) {
      const std::uint32_t tensor = pieces[key].tensor;
      if (chosen[tensor] && tensors_[tensor].is_known == known) keys.push_back(key);
    }
    if (keys.empty()) continue;
    Outstanding pull = requests_.command(Op::kPullDelta, number);
    pull.request.keys = std::move(keys);
    pull.request.version = known ? 0 : 1;
    requests_.send(number, std::move(pull), ticket);
  }
}

void ClientTensors::take_deltas(const Request& pull, std::string_view payload) {
  const std::uint64_t seed = compress::parse(options_.pull_codec).seed;
  const bool whole = pull.version != 0;
  for (const std::uint32_t key : pull.keys) {
    const Piece& piece = shards_[pull.shard].pieces[key];
    const int has = tensors_[piece.tensor].area;
    const auto count = static_cast<std::size_t>(piece.count);
    const float* const from = area(has) + offset_of(piece);
    const std::span<float> to(area(has ^ 1) + offset_of(piece), count);
    std::copy_n(from, count, to.begin());
    if (!whole && delta_codec_) {
      decode_values(*delta_codec_, payload, draw_of(seed, pull, key), to);
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

// Values that have come in a message (else the server has written them), and codes of values.
void ClientTensors::take_values(const Request& pull, std::string_view payload) {
  auto* const values = reinterpret_cast<float*>(requests_.memory() + pull.offset);
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

}  // namespace weft::ps::internal
