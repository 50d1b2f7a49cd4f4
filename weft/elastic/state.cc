#include "weft/elastic/state.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "weft/elastic/internal/part_source.h"
#include "weft/elastic/internal/random_state.h"

namespace weft::elastic {
namespace {

// Parts of the saved state besides the registered things. DataParallelBase::load_codec() reads the
// second.
constexpr const char *kRandom = internal::kRandomPart, *kCodec = "codec";

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// The name of a text: "step", or "sampler.epoch".
std::string text_name(const std::string& thing, const std::string& key) {
  return key.empty() ? thing : thing + "." + key;
}

// The texts of one thing, by their keys.
Texts texts_of(const checkpoint::StringMap& all, const std::string& thing) {
  Texts texts;
  if (const auto found = all.find(thing); found != all.end()) texts[""] = found->second;
  const std::string prefix = text_name(thing, "x").substr(0, thing.size() + 1);
  for (auto at = all.lower_bound(prefix); at != all.end() && at->first.starts_with(prefix); ++at)
    texts[at->first.substr(prefix.size())] = at->second;
  return texts;
}

}  // namespace

void State::add_entry(const std::string& name, Entry entry) {
  WEFT_REQUIRE(is_name(name) && name != kRandom && name != kCodec,
               "elastic: \"" + name +
                   "\" cannot be the name of a registered thing: use letters, "
                   "digits, '_' and '-', and neither \"random\" nor \"codec\"");
  for (const auto& [known, other] : entries_) {
    WEFT_REQUIRE(known != name, "elastic: \"" + name + "\" is registered twice");
    WEFT_REQUIRE(entry.object == nullptr || other.object != entry.object,
                 "elastic: \"" + name + "\" is registered already, as \"" + known + "\"");
  }
  entries_.emplace_back(name, std::move(entry));
}

void State::on_group(std::function<void(const Group& world)> make) {
  makers_.push_back(std::move(make));
}

std::string State::outline() const {
  std::string text;
  for (const auto& [name, entry] : entries_) {
    text += name + ":; ";
    if (entry.outline) text += entry.outline();
  }
  return text;
}

void State::bind(const Group& world) {
  for (const auto& [name, entry] : entries_) {
    if (entry.bind) entry.bind(world);
  }
  for (const auto& make : makers_) make(world);
}

// The last first, since things made later may use earlier ones.
void State::unbind() {
  for (auto at = entries_.rbegin(); at != entries_.rend(); ++at) {
    if (at->second.unbind) at->second.unbind();
  }
}

checkpoint::Shards State::shards(const Group& world, std::int64_t step) const {
  checkpoint::Shards all{.step = step, .parts = {}, .state = {}};
  for (const auto& [name, entry] : entries_) {
    if (!entry.save) continue;
    Values values = entry.save();
    auto& slices = all.parts[name] = std::move(values.shards);
    // On all ranks, though one of them is dealt the tensor.
    for (const auto& slice : values.equal) checkpoint::check_name(slice.name);
    for (auto& slice : checkpoint::deal(std::move(values.equal), world.rank(), world.size()))
      slices.push_back(std::move(slice));
    for (const auto& [key, text] : values.texts) all.state[text_name(name, key)] = text;
    if (values.codec.empty()) continue;
    WEFT_REQUIRE(!all.parts.contains(kCodec),
                 "elastic: only one of the registered models may have a codec");
    all.parts[kCodec] = std::move(values.codec);
  }
  all.parts[kRandom] = internal::random_slices(world);
  return all;
}

void State::load(const Group& world, const checkpoint::Reader& reader) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, entry] : entries_) {
    if (!entry.load) continue;
    const internal::PartSource tensors(reader, name);
    const Texts texts = texts_of(reader.state(), name);
    try {
      entry.load({tensors, texts, reader});
    } catch (const Error& error) {  // the messages of entries do not know their names
      if (error.code() != Errc::kCorrupt) throw;
      WEFT_REQUIRE(!texts.empty(), "elastic: the saved state has no \"" + name +
                                       "\"; it is of another program, or of an older version of "
                                       "this one");
      throw Error(Errc::kCorrupt, "elastic: \"" + name + "\": " + error.message());
    }
  }
  internal::load_random(world, reader);
}

}  // namespace weft::elastic
