"""scikit-learn's n_jobs on hetero: each fit of the search is a task on one of the devices."""

import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import hetero

digits, labels = load_digits(return_X_y=True)
search = GridSearchCV(SVC(), {"C": [0.1, 1.0, 10.0], "gamma": ["scale", 0.001]}, cv=3, n_jobs=2)
with hetero.Context(devices="1xcpu,1xcpu*0.5") as ctx:
    hetero.tasks.register_joblib(ctx)
    with joblib.parallel_backend("hetero"):
        search.fit(digits, labels)
    print(search.best_params_, round(search.best_score_, 3))
