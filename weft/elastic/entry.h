// Entry: how State saves and loads one registered thing. entry_of() makes it, for
//
//   a model of data_parallel(), with its optimizer; Sharded, ParallelModel
//   torch::nn::Module, torch::optim::Optimizer, at::Tensor
//   numbers, enumerations, std::string
//   weft's Sampler and Loader, and whatever has state() with an epoch and a position
//   whatever has save(), which returns a text, and load(text)
//   std::optional of one of these: it is empty between two groups, and State::on_group() fills it
//
// For a type of your own, write entry_of(T&) in its namespace.
#pragma once

#include <ATen/core/Tensor.h>

#include <charconv>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "weft/base/error.h"
#include "weft/checkpoint/reader.h"
#include "weft/checkpoint/slice.h"
#include "weft/comm/group.h"

namespace torch::nn {
class Module;
template <typename Contained>
class ModuleHolder;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
}
namespace weft::engine {
class Optimizer;
}

namespace weft::elastic {

using Texts = std::map<std::string, std::string>;

// The values of a thing.
struct Values {
  checkpoint::Slices shards;  // This rank's part. All ranks' slices together are the whole, once.
  checkpoint::Slices equal;   // Whole tensors that are the same on all ranks.
  checkpoint::Slices codec;   // Memory of a codec, as DataParallelBase::codec_slices().
  Texts texts;                // Short values that are the same on all ranks.
};

// The source of the values of a thing.
struct Loading {
  const checkpoint::SliceSource& tensors;  // Those of this thing alone.
  const Texts& texts;
  const checkpoint::Reader& reader;  // The whole state.
};

// Empty functions do nothing.
struct Entry {
  const void* object = nullptr;              // Address of the thing.
  std::function<void(const Group&)> bind;    // Makes what belongs to a group. Collective.
  std::function<void()> unbind;              // Drops it; the group may have failed.
  std::function<Values()> save;              // Views of the memory. Not collective.
  std::function<void(const Loading&)> load;  // Collective.
  // Names, types and shapes, equal on all ranks and known without a group. Entries end with "; ".
  std::function<std::string()> outline;
};

Entry entry_of(torch::nn::Module& module);
template <class Contained>
Entry entry_of(torch::nn::ModuleHolder<Contained>& holder) {
  return entry_of(static_cast<torch::nn::Module&>(*holder));
}
// Throws Error(kInvalidArgument) for another optimizer than SGD, Adam, AdamW, RMSprop and Adagrad.
Entry entry_of(torch::optim::Optimizer& optimizer);
// The entry of the model has it.
Entry entry_of(engine::Optimizer& optimizer) = delete;
Entry entry_of(at::Tensor& tensor);
Entry entry_of(std::string& text);

template <class T>
concept Scalar = std::is_arithmetic_v<T> || std::is_enum_v<T>;

// The number as text, exactly.
template <Scalar T>
std::string text_of(T value) {
  if constexpr (std::is_enum_v<T>) {
    return text_of(static_cast<std::underlying_type_t<T>>(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "1" : "0";
  } else {
    char text[64];
    std::to_chars_result result{};
    if constexpr (std::is_floating_point_v<T>) {
      result = std::to_chars(text, text + sizeof text, value, std::chars_format::hex);
    } else {
      result = std::to_chars(text, text + sizeof text, value);
    }
    return {text, result.ptr};
  }
}

// Inverse of text_of(). nullopt for any other text.
template <Scalar T>
std::optional<T> value_of(const std::string& text) {
  if constexpr (std::is_enum_v<T>) {
    const auto number = value_of<std::underlying_type_t<T>>(text);
    return number ? std::optional(static_cast<T>(*number)) : std::nullopt;
  } else if constexpr (std::is_same_v<T, bool>) {
    return text == "0" || text == "1" ? std::optional(text == "1") : std::nullopt;
  } else {
    T value{};
    const char *const begin = text.data(), *const end = begin + text.size();
    std::from_chars_result result{};
    if constexpr (std::is_floating_point_v<T>) {
      result = std::from_chars(begin, end, value, std::chars_format::hex);
    } else {
      result = std::from_chars(begin, end, value);
    }
    return result.ec == std::errc() && result.ptr == end ? std::optional(value) : std::nullopt;
  }
}

// The text for people: a fraction that text_of() has written is decimal. "1.8p+1" gives "3".
std::string in_decimal(const std::string& text);

// Throws Error(kCorrupt) if it is missing.
const std::string& text_at(const Texts& texts, const std::string& key);
// The text `key`, as a number. Throws Error(kCorrupt) if it is missing or no number.
template <Scalar T>
T number_at(const Texts& texts, const std::string& key) {
  const auto found = texts.find(key);
  const auto value = found == texts.end() ? std::nullopt : value_of<T>(found->second);
  if (!value) throw Error(Errc::kCorrupt, "the saved state has no number \"" + key + "\"");
  return *value;
}

template <Scalar T>
Entry entry_of(T& number) {
  return {.object = &number,
          .save =
              [&number] {
                return Values{.texts = {{"", text_of(number)}}};
              },
          .load = [&number](const Loading& from) { number = number_at<T>(from.texts, ""); }};
}

template <class T>
concept HasPosition = requires(T& thing) {
  { thing.state().epoch } -> std::convertible_to<std::int64_t>;
  { thing.state().position } -> std::convertible_to<std::int64_t>;
};

template <HasPosition T>
Entry entry_of(T& sampler) {
  return {.object = &sampler,
          .save =
              [&sampler] {
                const auto at = sampler.state();
                return Values{
                    .texts = {{"epoch", text_of(at.epoch)}, {"position", text_of(at.position)}}};
              },
          .load =
              [&sampler](const Loading& from) {
                auto at = sampler.state();
                at.epoch = number_at<std::int64_t>(from.texts, "epoch");
                at.position = number_at<std::int64_t>(from.texts, "position");
                if constexpr (requires { sampler.set_state(at); }) {
                  sampler.set_state(at);
                } else {
                  sampler.restore(at);
                }
              }};
}

template <class T>
concept HasShards = requires(T& thing, const checkpoint::Reader& reader) {
  thing.shards();
  thing.load_shards(reader);
};

template <HasShards T>
Values values_of(T& model) {
  Values values;
  if constexpr (requires { model.codec_slices(); }) values.codec = model.codec_slices();
  if constexpr (std::same_as<decltype(model.shards()), checkpoint::Slices>) {
    values.shards = model.shards();
  } else {
    for (auto& [part, slices] : model.shards()) {
      auto& into = part == "codec" ? values.codec : values.shards;
      into.insert(into.end(), slices.begin(), slices.end());
    }
  }
  if constexpr (requires { model.lr(); }) values.texts = {{"lr", text_of(model.lr())}};
  return values;
}

template <HasShards T>
Entry entry_of(T& model) {
  Entry entry{.object = &model, .save = [&model] { return values_of(model); }};
  entry.load = [&model](const Loading& from) {
    if constexpr (requires { model.set_lr(0.0); })
      model.set_lr(number_at<double>(from.texts, "lr"));
    model.load_shards(from.tensors);
    if constexpr (requires { model.load_codec(from.reader); }) model.load_codec(from.reader);
  };
  if constexpr (requires(const Group& group) { model.bind(group); }) {
    entry.bind = [&model](const Group& world) { model.bind(world); };
    entry.unbind = [&model] { model.unbind(); };
    entry.outline = [&model] { return model.outline(); };
  }
  return entry;
}

template <class T>
concept HasText = requires(T& thing, const std::string& text) {
  { thing.save() } -> std::convertible_to<std::string>;
  thing.load(text);
};

template <HasText T>
Entry entry_of(T& thing) {
  return {.object = &thing,
          .save =
              [&thing] {
                return Values{.texts = {{"", thing.save()}}};
              },
          .load = [&thing](const Loading& from) { thing.load(text_at(from.texts, "")); }};
}

template <class T>
Entry entry_of(std::optional<T>& thing) {
  const auto made = [&thing]() -> T& {
    WEFT_REQUIRE(thing.has_value(),
                 "elastic: a registered std::optional is empty: State::on_group() must fill it");
    return *thing;
  };
  return {.object = &thing,
          .unbind = [&thing] { thing.reset(); },
          .save = [made] { return entry_of(made()).save(); },
          .load = [made](const Loading& from) { entry_of(made()).load(from); }};
}

}  // namespace weft::elastic
