"""What a person gets wrong on the command line or in a recipe: one line, at once, before any rank
is started."""

import harness


class Configuration(harness.FaultTest):
    def refused(self, job, *says):
        result = self.ends(job, 2, says, within=5)
        self.assertEqual(result.err.count("\n"), 1, result.err)

    def test_an_unknown_recipe_names_the_nearest(self):
        recipe = self.folder / "recipes/shapes/recipe.toml"
        recipe.parent.mkdir(parents=True)
        recipe.write_text(harness.RECIPE)
        self.refused(
            self.weft("train", "shaps", "-n", 2), 'no recipe "shaps"', 'did you mean "shapes"?'
        )

    def test_an_unknown_key_names_the_nearest(self):
        self.refused(
            self.train(2, "train.epoch=3"), "unknown key train.epoch; did you mean train.epochs?"
        )

    def test_an_unknown_key_in_the_file_names_file_and_line(self):
        lines = harness.RECIPE.count("\n")
        (self.folder / "recipe.toml").write_text(harness.RECIPE + '[comm]\ntransprot = "tcp"\n')
        self.refused(
            self.train(2),
            f"recipe.toml:{lines + 2}: unknown key comm.transprot; did you mean comm.transport?",
        )

    def test_an_unknown_model_names_those_that_there_are(self):
        # The ranks find it, as they make the model.
        says = (
            ' failed: exit code 2: BadConfig: model.name: unknown model "cn"; did you mean "cnn"? '
            "There are mlp, cnn, resnet18"
        )
        self.ends(self.train(2, "model.name=cn"), 2, within=5, last=says)

    def test_an_unknown_data_set_names_those_that_there_are(self):
        self.refused(self.train(2, "data.name=imagenet"), "data.name", "fashion-mnist", "shapes")

    def test_an_unknown_command_names_the_nearest(self):
        self.refused(self.weft("trian"), 'unknown command "trian"', 'did you mean "train"?')


if __name__ == "__main__":
    harness.main()
