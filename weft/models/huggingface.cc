#include "weft/models/huggingface.h"

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/text/words.h"
#include "weft/models/internal/huggingface_places.h"

namespace weft::models {
namespace {

using checkpoint::TensorMap;
using internal::Place;

// A parameter, or one expert of a stacked parameter, on this rank.
struct Mine {
  at::Tensor tensor;
  std::optional<parallel::Slice> slice;
  int rank = 0;
  bool here = true;  // False: another rank has this expert. `tensor` then only gives the shape.
};

Mine mine_of(const GptImpl& model, const Place& place, const at::Tensor& parameter,
             std::optional<parallel::Slice> slice) {
  if (place.expert < 0) return {parameter, slice, model.tp.rank()};
  const std::int64_t at = place.expert - parameter.size(0) * model.ep.rank();
  const bool here = at >= 0 && at < parameter.size(0);
  if (slice) --slice->dim;
  return {parameter.select(0, here ? at : 0), slice, model.tp.rank(), here};
}

// Returns the shape of the whole parameter over all ranks.
std::vector<std::int64_t> whole_sizes(const at::Tensor& mine,
                                      const std::optional<parallel::Slice>& slice) {
  std::vector<std::int64_t> sizes = mine.sizes().vec();
  if (slice) sizes[static_cast<std::size_t>(slice->dim)] = slice->whole;
  return sizes;
}

std::optional<parallel::Slice> slice_at(const std::map<std::string, parallel::Slice>& slices,
                                        const std::string& name) {
  const auto found = slices.find(name);
  return found == slices.end() ? std::nullopt : std::optional(found->second);
}

// Hugging Face's tensors in memory or in files. `read` reads a part of a tensor, so that a rank
// reads its slices only.
struct Source {
  std::map<std::string, std::vector<std::int64_t>> sizes;
  std::function<at::ScalarType(const std::string& name)> dtype;
  std::function<at::Tensor(const std::string& name, std::int64_t dim, std::int64_t begin,
                           std::int64_t count)>
      read;
};

// Values `from` for this rank's part `to` of a parameter. `to` is padding after the first `count`
// entries along `dim`.
struct ReadPart {
  at::Tensor to, from;
  std::int64_t dim = 0, count = 0;
};

// Reads the values of this rank's part of a parameter. Returns an empty ReadPart if another rank
// has the expert.
ReadPart read_part(const Source& source, const std::string& name, const Place& place,
                   const Mine& mine) {
  const std::vector<std::int64_t> whole = whole_sizes(mine.tensor, mine.slice);
  std::vector<std::int64_t> theirs = whole;
  if (place.third >= 0) theirs[0] *= 3;
  if (place.transposed) std::swap(theirs[0], theirs[1]);
  const std::vector<std::int64_t>& there = source.sizes.at(name);
  WEFT_REQUIRE(there == theirs, "Hugging Face weights: \"" + name + "\" is [" + joined(there) +
                                    "], the model's options ask for [" + joined(theirs) + "]");
  internal::require_floating(name, source.dtype(name));

  if (!mine.here) return {};
  const std::int64_t dim = mine.slice ? mine.slice->dim : 0,
                     all = whole[static_cast<std::size_t>(dim)];
  const std::int64_t begin = mine.slice ? std::min(all, mine.rank * mine.tensor.size(dim)) : 0;
  const std::int64_t count = std::min(mine.tensor.size(dim), all - begin);
  const std::int64_t shift = place.third >= 0 && dim == 0 ? place.third * all : 0;
  const at::Tensor part = source.read(name, place.transposed ? 1 - dim : dim, begin + shift, count);
  return {mine.tensor, place.transposed ? part.t() : part, dim, count};
}

void set_from(GptImpl& model, const Source& source) {
  const at::NoGradGuard no_grad;
  const auto parameters = model.named_parameters();
  const auto slices = parallel::slices(model);
  std::vector<ReadPart> parts;  // Copied into the model after all checks have passed.
  std::set<std::string> used;
  for (const Place& place : internal::places_of(model.options)) {
    const std::string name = internal::find(source.sizes, place.theirs);
    used.insert(name);
    parts.push_back(
        read_part(source, name, place,
                  mine_of(model, place, parameters[place.ours], slice_at(slices, place.ours))));
  }
  for (const auto& [name, sizes] : source.sizes) {
    WEFT_REQUIRE(used.contains(name) || internal::passed_over(name, model.options),
                 "Hugging Face weights: the model has no place for \"" + name +
                     "\"; do its options (layers, bias, tied) fit the file?");
  }
  for (const ReadPart& part : parts) {
    at::Tensor to = part.to;
    if (to.defined()) to.zero_().narrow(part.dim, 0, part.count).copy_(part.from);
  }
}

}  // namespace

HuggingFace huggingface_family(const GptOptions& o) {
  const bool gated = o.activation == Activation::kSwiglu,
             shared = o.kv_heads != 0 && o.kv_heads != o.heads;
  const bool wide = o.head_width != 0 && o.head_width * o.heads != o.width;
  const bool gpt2 = o.norm == Norm::kLayerNorm && o.positions == Positions::kLearned && o.bias &&
                    !gated && !shared && !wide;
  if (gpt2 && o.experts == 0) return HuggingFace::kGpt2;
  if (o.norm == Norm::kRmsNorm && o.positions == Positions::kRotary && !o.bias && gated) {
    if (o.experts == 0) return HuggingFace::kLlama;
    if (o.experts_top_k > 1 && o.experts_capacity == 0) return HuggingFace::kMixtral;
  }
  throw Error(Errc::kInvalidArgument,
              "Hugging Face weights: the options are neither GPT-2's (LayerNorm, learned "
              "positions, biases, no gate, a kv head for each head) "
              "nor Llama's (RMSNorm, rotary positions, SwiGLU, no biases), nor Mixtral's (Llama's, "
              "and experts without a capacity, two or more a "
              "token)");
}

void set_huggingface(GptImpl& model, const TensorMap& tensors) {
  Source source;
  for (const auto& [name, tensor] : tensors) source.sizes.emplace(name, tensor.sizes().vec());
  source.dtype = [&](const std::string& name) { return tensors.at(name).scalar_type(); };
  source.read = [&](const std::string& name, std::int64_t dim, std::int64_t begin,
                    std::int64_t count) { return tensors.at(name).narrow(dim, begin, count); };
  set_from(model, source);
}

void load_huggingface(GptImpl& model, const std::vector<std::string>& paths) {
  std::vector<checkpoint::TensorReader> files;
  std::map<std::string, std::size_t> file_of;
  Source source;
  for (const std::string& path : paths) {
    files.emplace_back(path);
    for (const auto& [name, sizes] : files.back().sizes()) {
      WEFT_REQUIRE(source.sizes.emplace(name, sizes).second,
                   "Hugging Face weights: \"" + name + "\" is in two files, of them " + path);
      file_of[name] = files.size() - 1;
    }
  }
  source.dtype = [&](const std::string& name) {
    return files[file_of.at(name)].read(name, 0, 0, 0).scalar_type();  // reads nothing
  };
  source.read = [&](const std::string& name, std::int64_t dim, std::int64_t begin,
                    std::int64_t count) {
    return files[file_of.at(name)].read(name, dim, begin, count);
  };
  set_from(model, source);
}

TensorMap get_huggingface(const GptImpl& model) {
  const auto parameters = model.named_parameters();
  const auto slices = parallel::slices(model), stacks = parallel::expert_slices(model);
  TensorMap all;
  std::map<std::string, std::vector<at::Tensor>> thirds;
  std::map<std::string, at::Tensor> wholes;
  const auto whole_at = [&](const std::string& name) {
    if (const auto found = wholes.find(name); found != wholes.end()) return found->second;
    const auto slice = slice_at(slices, name), stack = slice_at(stacks, name);
    at::Tensor whole = parameters[name].detach();
    if (slice) whole = parallel::whole_of(whole, *slice, model.tp);
    if (stack && model.ep.size() > 1)
      whole = parallel::whole_of(whole, *stack, parallel::TensorParallel(model.ep.group(), 0));
    return wholes[name] = whole;
  };
  for (const Place& place : internal::places_of(model.options)) {
    const at::Tensor stack = whole_at(place.ours),
                     whole = place.expert < 0 ? stack : stack[place.expert];
    const at::Tensor turned = place.transposed ? whole.t() : whole;
    if (place.third < 0) {
      all[place.theirs] = turned.contiguous();
    } else {
      thirds[place.theirs].push_back(turned);
    }
  }
  for (const auto& [name, parts] : thirds) all[name] = torch::cat(parts, -1);
  return all;
}

}  // namespace weft::models
