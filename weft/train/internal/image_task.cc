// Task of image recipes: images and the models that classify them.
#include <ATen/ATen.h>

#include <algorithm>

#include "weft/base/error.h"
#include "weft/base/text/numbers.h"
#include "weft/data/image_set.h"
#include "weft/models/loss.h"
#include "weft/models/registry.h"
#include "weft/train/internal/recipe_settings.h"
#include "weft/train/internal/recipe_task.h"
#include "weft/train/options.h"

namespace weft::train::internal {
namespace {

// Options for training. Evaluation turns crop and flip off. Both normalize by the mean and standard
// deviation of the training images. A channel that has one value everywhere becomes 0.
data::AugmentOptions augment_options(const DataSettings& settings, const data::ImageSet& train) {
  auto stats = data::channel_stats(train);
  if (std::count(stats.std.begin(), stats.std.end(), 0.f) == std::ssize(stats.std))
    throw Error(Errc::kBadConfig,
                "data: all pixels of the training images have the same value; a model cannot tell "
                "such images apart");
  std::replace(stats.std.begin(), stats.std.end(), 0.f, 1.f);
  data::AugmentOptions options;
  options.crop_padding = settings.crop_padding;
  options.flip = settings.flip;
  options.mean = stats.mean;
  options.std = stats.std;
  return options;
}

models::ModelOptions model_options(const ModelSettings& settings, const data::ImageSet& train) {
  models::ModelOptions options;
  options.name = settings.name;
  options.in_channels = train.channels;
  options.image_size = train.height;
  options.image_width = train.width;
  options.num_classes = train.num_classes;
  options.hidden = settings.hidden;
  options.stem = settings.stem;
  options.patch = settings.patch;
  options.layers = settings.layers;
  options.width = settings.width;
  options.heads = settings.heads;
  options.pool = settings.pool;
  options.dropout = settings.dropout;
  return options;
}

void require_alike(const data::ImageSet& train, const data::ImageSet& test) {
  const auto shape = [](const data::ImageSet& set) {
    return std::to_string(set.channels) + "x" + std::to_string(set.height) + "x" +
           std::to_string(set.width);
  };
  if (shape(train) == shape(test)) return;
  throw Error(Errc::kBadConfig, "data.dir: the training images are " + shape(train) +
                                    " (channels x height x width), the test images " + shape(test));
}

class ImageTask final : public RecipeTask {
 public:
  ImageTask(const Config& config, const TrainerOptions& options)
      : settings_(recipe_settings_of(config)),
        seed_(options_of(config).plan.seed),
        train_(options.train_images),
        test_(options.test_images) {
    if (!train_)
      train_ = std::make_shared<const data::ImageSet>(
          data::load_images(image_set_of(settings_.data), data::Part::kTrain));
    if (!test_)
      test_ = std::make_shared<const data::ImageSet>(
          data::load_images(image_set_of(settings_.data), data::Part::kTest));
    require_alike(*train_, *test_);
    model_ = models::image_blocks(model_options(settings_.model, *train_));
  }

  parallel::BlockModel outline() const override { return model_; }

  Task make(const std::string&) override {
    const models::LossOptions loss{models::parse_loss(settings_.loss.name),
                                   settings_.loss.label_smoothing};
    Task task(model_, [loss](const at::Tensor& output, const at::Tensor& target) {
      // The models give logits.
      const bool takes_logits = loss.kind != models::LossKind::kNll;
      return models::loss(takes_logits ? output : output.log_softmax(1), target, loss);
    });
    auto augment = augment_options(settings_.data, *train_);
    augment.seed = seed_;
    task.train = data::image_source(train_, data::Augment(augment));
    augment.crop_padding = 0;
    augment.flip = false;
    task.test = data::image_source(test_, data::Augment(augment));
    task.metrics.push_back({"accuracy", [](const at::Tensor& output, const at::Tensor& target) {
                              return at::stack({output.argmax(1).eq(target).sum().to(at::kDouble),
                                                at::scalar_tensor(target.size(0), at::kDouble)});
                            }});
    return task;
  }

  std::vector<LogField> epoch_fields(const Evaluation&, double samples_per_s) const override {
    return {{"samples_per_s", rounded(samples_per_s, 0)}};
  }

 private:
  const RecipeSettings settings_;
  const std::uint64_t seed_;
  std::shared_ptr<const data::ImageSet> train_, test_;
  parallel::BlockModel model_;
};

}  // namespace

std::unique_ptr<RecipeTask> image_task(const Config& config, const TrainerOptions& options) {
  return std::make_unique<ImageTask>(config, options);
}

}  // namespace weft::train::internal
